"""Studies: systems compared on the same data, splits and seeds; STUDY.toml -> runs -> tables with intervals."""
