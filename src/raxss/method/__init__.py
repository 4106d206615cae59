"""The method: windows, sampling, retrieval, backbones, weighting, aggregation, training and inference."""
