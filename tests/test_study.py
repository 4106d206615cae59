"""The study file: what it means, and what it refuses."""

import dataclasses
import re
import sys
import textwrap
from pathlib import Path

import pytest

from raxss.benchmark.dataset import WINDOWS, Source
from raxss.benchmark.study import SEEDS, Study, load_extensions
from raxss.benchmark.systems import PEERS, SYSTEMS
from raxss.data.datasets import DATASETS
from raxss.data.prepare.preprocessing import Preparation
from raxss.errors import ConfigError
from raxss.method.backbones import BACKBONES
from raxss.method.windows import WindowConfig

STUDIES = Path(__file__).parents[1] / "studies"

SMALL = """
systems = ["sss", "all-positive"]
[dataset]
data = "synthetic"
"""


def test_what_a_study_does_not_say_has_defaults():
    study = Study.from_toml(SMALL)
    assert study.seeds == SEEDS == (69421, 69422, 69423, 69424, 69425)
    assert study.n_threads == 1
    (dataset,) = study.datasets
    assert dataset.preparation == Preparation()
    assert dataset.windows == WindowConfig(window_length=1024, stride=128)
    assert dataset.split.kind == "single"
    assert dataset.split.fractions == (0.7, 0.1, 0.2)


def test_a_dataset_takes_the_studys_settings_where_it_has_none_of_its_own():
    study = Study.from_toml("""
        systems = ["sss"]
        [preparation]
        pool = "24/12"
        [windows]
        window_length = 512
        stride = 5
        [split]
        by = "channel"
        balance = "train_val"
        [[dataset]]
        data = "bonn"
        classes = ["F", "N"]
        [[dataset]]
        data = "watch"
        preparation = { pool = "2/2" }
        windows = { stride = 32 }
        split = { by = "patient" }
    """)
    bonn, watch = study.datasets
    assert (bonn.name, bonn.classes) == ("bonn", ("F", "N"))
    assert str(bonn.preparation) == "pool 24/12"
    assert (bonn.windows.window_length, bonn.windows.stride, bonn.split.by) == (512, 5, "channel")
    assert str(watch.preparation) == "pool 2/2"
    assert (watch.windows.window_length, watch.windows.stride, watch.split.by) == (512, 32, "patient")
    assert watch.split.balance == "train_val"


def test_all_means_every_system_and_those_that_the_study_adds():
    study = Study.from_toml("""
        [dataset]
        data = "synthetic"
        [system.rocket]
        window_length = 500
        [system.mine]
        base = "sss"
        backbone = "convnet"
    """)
    compared = study.compared()
    assert list(compared) == [*SYSTEMS, "mine"]
    assert compared["rocket"].choices_for(10_000) == [{}]
    mine = compared["mine"].parameters(WindowConfig())
    assert (mine["backbone"], mine["weighting"]) == ("convnet", "uniform")


def test_a_narrower_run_keeps_the_studys_order():
    study = Study.from_toml(
        'systems = ["sss", "gru", "lstm"]\nseeds = [3, 1, 2]\n[dataset]\ndata = "synthetic"'
    )
    assert study.narrowed() == (["sss", "gru", "lstm"], [3, 1, 2])
    assert study.narrowed(only=["lstm", "sss"], seeds=[2, 3]) == (["sss", "lstm"], [3, 2])
    with pytest.raises(ConfigError, match="no system 'grus'; did you mean 'gru'"):
        study.narrowed(only=["grus"])
    with pytest.raises(ConfigError, match="no seed 4"):
        study.narrowed(seeds=[4])


ISSUED = sorted(file.stem for file in STUDIES.glob("*.toml"))
OF_SOME = ("across-centres", "bern-barcelona-cropped")


@pytest.mark.parametrize("name", ISSUED)
def test_the_studies_that_come_with_the_package_are_sound(name):
    study = Study.read(STUDIES / f"{name}.toml")
    some = ["tuned", "raxss-pearson", "sss", "patchtst", "rocket", "features-forest", "recommended", "auto"]
    if name.startswith("variants-") or name == "more":  # tests/test_variants.py looks at the first
        return
    assert list(study.compared()) == (some if name in OF_SOME else list(SYSTEMS))


def test_further_sets_have_nothing_but_the_data_and_the_peers():
    study = Study.read(STUDIES / "more.toml")
    assert list(study.compared()) == [
        "recommended",
        "auto",
        *list(PEERS)[:3],
        "features-forest",
        *list(PEERS)[3:],
    ]
    assert {item.data for item in study.datasets} == {
        name for name, item in DATASETS.items() if item.folder.startswith("more/")
    }
    assert (dict(study.training), dict(study.settings), study.seeds) == ({}, {}, SEEDS)
    for item in study.datasets:
        assert (str(item.preparation), item.windows) == ("", WindowConfig(**WINDOWS))
        assert item.split.kind == ("official" if DATASETS[item.data].has_split else "folds")


@pytest.mark.parametrize("name", ISSUED)
def test_every_issued_study_has_the_two_systems_without_settings(name):
    compared = Study.read(STUDIES / f"{name}.toml").compared()
    assert {"recommended", "auto"} <= set(compared)
    for system in ("recommended", "auto") if name != "smoke" else ("recommended",):
        assert compared[system] == SYSTEMS[system]


def test_the_list_of_studies_has_all_of_them():
    listed = re.findall(r"^\| \[(.+)\.toml\]\(\1\.toml\) \|", (STUDIES / "README.md").read_text(), re.M)
    assert sorted(listed) == ISSUED


def test_the_controls_differ_from_their_studies_in_what_they_are_about_alone():
    plain, cropped = (
        Study.read(STUDIES / f"bern-barcelona{item}.toml").datasets[0] for item in ("", "-cropped")
    )
    assert cropped == dataclasses.replace(plain, name=cropped.name, crop=(0.2, 1.0))
    plain, shuffled = (
        Study.read(STUDIES / f"cinc2017-af{item}.toml").datasets[0] for item in ("", "-shuffled")
    )
    assert shuffled == dataclasses.replace(plain, name=f"{plain.name}, labels shuffled", shuffled=True)


def test_a_dataset_may_have_several_sources():
    (dataset,) = Study.read(STUDIES / "across-centres.toml").datasets
    bern, bonn = dataset.sources
    assert (dataset.data, dataset.preparation.rate, dataset.split.kind) == ("", 173.61, "leave-one-out")
    assert bern == Source(data="bern-barcelona", centre="bern-barcelona")
    assert (bonn.centre, bonn.classes, bonn.rename) == ("bonn", ("F", "N"), {"F": "focal", "N": "nonfocal"})


@pytest.mark.parametrize("name", ["", 'name = "nights"'])
def test_shuffled_labels_are_in_the_name_whatever_it_is(name):
    study = Study.from_toml(f'[dataset]\ndata = "bonn"\nshuffled = true\n{name}')
    assert study.datasets[0].name == ("nights" if name else "bonn") + ", labels shuffled"


def test_a_dataset_is_judged_by_its_headline_figure():
    ours = [name for name in ISSUED if name != "more"]
    headlines = {name: Study.read(STUDIES / f"{name}.toml").datasets[0].headline for name in ours}
    assert {name: item for name, item in headlines.items() if item != "auc"} == {
        "cinc2017": "f1",
        "watch": "accuracy",
        "variants-watch": "accuracy",
    }
    with pytest.raises(ConfigError, match=r"dataset.headline is 'acuracy'; did you mean 'accuracy'"):
        Study.from_toml(SMALL + 'headline = "acuracy"')


def test_the_papers_study_is_the_papers_protocol():
    study = Study.read(STUDIES / "paper.toml")
    everything, alone, unseen = study.datasets
    assert study.seeds == SEEDS
    assert {item.data for item in study.datasets} == {"ds003029"}
    for item in study.datasets:
        assert str(item.preparation) == "pool 24/12"
        assert (item.windows.window_length, item.windows.stride) == (1024, 5)
        assert (item.split.fractions, item.split.balance) == ((0.7, 0.1, 0.2), "train_val")
    assert (everything.split.kind, everything.split.by) == ("single", "channel")
    assert (alone.split.kind, alone.split.by) == ("per-centre", "channel")
    assert unseen.split.kind == "leave-one-out"
    paper = study.compared()["raxss-pearson"].parameters(everything.windows, training=study.training)
    text = {name: paper[name] for name in ("batch_size", "max_epochs", "lr", "n_neighbors", "exclusion")}
    assert text == {"batch_size": 8192, "max_epochs": 50, "lr": 3e-4, "n_neighbors": 10, "exclusion": 0}


BAD = [
    ("seads = [1]", "no setting 'seads'; did you mean 'seeds'"),
    ('systems = ["raxss-cosin"]', "no system 'raxss-cosin'; did you mean 'raxss-cosine'"),
    ("systems = []", "systems is empty"),
    ('systems = "sss"', "systems is 'sss'; needed is a list"),
    ("seeds = []", r"seeds is \[\]"),
    ("seeds = [1, 2, 1]", r"\[1, 2, 1\], which has one twice"),
    ('seeds = ["a"]', "a seed is 'a'"),
    ("seeds = [-1]", "a seed is -1; .* at least 0"),
    ("n_threads = 0", "n_threads is 0; .* at least 1"),
    ("[training]\nmax_epoch = 3", r"\[training\] has no setting 'max_epoch'; did you mean 'max_epochs'"),
    ("[training]\nmax_epochs = 0", "training.max_epochs .* at least 1 or 'auto', got 0"),
    ("[training]\nwindow_loss_weight = 1.0", "no setting 'window_loss_weight'"),
    ('[split]\nkind = "fold"', "split.kind is 'fold'; did you mean 'folds'"),
    ('[split]\nby = "patients"', "split.by is 'patients'; did you mean 'patient'"),
    ('[split]\nbalance = "trainval"', "split.balance is 'trainval'; did you mean 'train_val'"),
    ("[split]\nfractions = [0.7, 0.1, 0.1]", r"\[0.7, 0.1, 0.1\]; .* add up to 1"),
    ("[split]\nfractions = [0.8, 0.0, 0.2]", r"\[0.8, 0.0, 0.2\]; .* three shares above 0"),
    ('[split]\nkind = "folds"\nn_folds = 10', "test 0.2, but each of 10 folds tests 0.1"),
    ('[split]\nkind = "folds"\nn_folds = 1', "split.n_folds is 1"),
    ('[split]\nkind = "leave-one-out"\nby = "patient"', "split.by = 'patient' does not go"),
    ('[split]\nonly = ["NIH"]', "kind = 'single' does not use"),
    ('[preparation]\npool = "24"', "preparation.pool is '24'; .*'24/12'"),
    ('[preparation]\nrate = "fast"', "preparation.rate is 'fast'"),
    ('[preparation]\npool = "24/12"\nrate = 250', "24/12 and resampling to 250 Hz"),
    ("[preparation]\npooling = 3", r"\[preparation\] has no setting 'pooling'; .*'pool'"),
    ("[windows]\nwindow_length = 0", "windows.window_length .* at least 1 or 'auto', got 0"),
    ("[windows]\nlength = 3", r"\[windows\] has no setting 'length'"),
    ("[system.sss]\nn_neighbours = 3", "'sss' has no setting 'n_neighbours'; did you"),
    ("[system.sss]\nrandom_state = 3", "'sss' sets 'random_state', which the study"),
    (
        "[system.recommended]\nmax_epochs = 2",
        r"system 'recommended' is RAxSSClassifier\(\), .* sets max_epochs",
    ),
    ('[system.auto]\nbudget = "5min"', "system 'auto' sets 'budget'; set n_trials"),
    ('[system.mine]\nbase = "ss"', "no system 'ss'; did you mean 'sss'"),
    ('[system.mine]\nbackbone = "convnet"', "no system 'mine'"),
    ('[system.mine]\nbase = "sss"\nbackbone = "timesnt"', "'timesnt', .* did you mean 'timesnet'"),
    ('[system."a/b"]\nbase = "sss"', "a system is called 'a/b'"),
    ("system = 3", r"'system' must be a section with settings, \[system\], got 3"),
    ("[system]\nsss = 3", r"'sss' must be a section with settings, \[sss\], got 3"),
    ('[system.mine]\nbase = ["sss"]', r"system 'mine' has base = \['sss'\]; needed is the name of a system"),
    (
        '[system.mine]\nbase = "sss"\nbackbone = ["x"]',
        r"system 'mine' has the backbone \['x'\], which there is not. Known: .*timesnet",
    ),
    (
        '[system.patchtst]\nwindow_length = "x"',
        "system 'patchtst': windows.window_length must be a whole number of at least 1 or 'auto', got 'x'",
    ),
    (
        '[system.rocket]\nwindow_length = "x"',
        "system 'rocket': windows.window_length must be a whole number of at least 1 or 'auto', got 'x'",
    ),
    (
        "[system.patchtst]\nwindow_loss_weight = 0.0",
        "system 'patchtst': .*window_loss_weight and .*series_loss_weight are both 0",
    ),
    ("[system.rocket]\nn_kernels = 1979-05-27", "holds the date or time 1979-05-27"),
    (f"name = {'[' * 5000}{']' * 5000}", "more than 64 deep inside each other"),
    (f"[{'.'.join('a' * 5000)}]", "more than 64 deep inside each other"),
    ('extensions = ["mine.py"]', "the extension 'mine.py' is not there"),
    ('extensions = ["mine.so"]', "'mine.so' is no Python file"),
]


@pytest.mark.parametrize(("text", "message"), BAD, ids=[message for _, message in BAD])
def test_a_study_is_refused_with_what_is_wrong_in_it(text, message):
    with pytest.raises(ConfigError, match=message):
        Study.from_toml(f'{text}\n[dataset]\ndata = "synthetic"')


BAD_STUDIES = [
    ("", "the study has no dataset"),
    ("dataset = 3", "the study has no dataset"),
    ("[dataset]", "data = None"),
    ('[[dataset]]\ndata = "bonn"\n[[dataset]]\ndata = "bonn"', "2 datasets are called 'bonn'"),
    ("[dataset", "not valid TOML"),
    ('[dataset]\nsource = "bonn"', "dataset.source is 'bonn'; needed are sections"),
    ("[[dataset.source]]", r"\[\[dataset.source\]\] has data = None"),
    (
        '[[dataset.source]]\ndata = "a/night"\n[[dataset.source]]\ndata = "b/night.csv"',
        "2 sources are the centre 'night'; .* centre = ",
    ),
]
BAD_DATASETS = [
    ('clases = ["F"]', "no setting 'clases'; did you mean 'classes'"),
    ('classes = "F"', "dataset.classes is 'F'; needed is a list"),
    ('classes = ["F", "N"]\npositive = "Z"', "dataset.positive is 'Z'"),
    ("windows = 3", "'windows' must be a section"),
    ('[[dataset.source]]\ndata = "watch"', "has data = 'bonn' and sources"),
    ("crop = 0.5", "dataset.crop is 0.5; needed are the least and the largest"),
    ("crop = [0.0, 1.0]", r"dataset.crop is \[0.0, 1.0\]"),
    ("crop = [0.5, 0.2]", r"dataset.crop is \[0.5, 0.2\]"),
    ("crop = [0.5, 1.1]", r"dataset.crop is \[0.5, 1.1\]"),
    ("crop = [0.5]", r"dataset.crop is \[0.5\]"),
    ('crop = ["a", "b"]', "dataset.crop is"),
    ('shuffled = "yes"', "dataset.shuffled is 'yes'; needed is true or false"),
    ('f1_classes = "F"', "dataset.f1_classes is 'F'; needed is a list"),
    ('classes = ["F", "N", "S"]\nf1_classes = ["F", "Z"]', "dataset.f1_classes is 'Z'. Known: F, N, S"),
    ('f1_classes = ["F", "F"]', "2 of dataset.f1_classes are 'F'"),
]
BAD_SOURCES = [
    ('class = ["F"]', r"\[\[dataset.source\]\] has no setting 'class'; did you mean 'classes'"),
    ('centre = "a/b"', "'bonn' has centre = 'a/b'; .* without '/'"),
    ('classes = ["F"]\nrename = { N = "other" }', "a class that source 'bonn' renames is 'N'. Known: F"),
    ("rename = { F = 1 }", "'bonn' renames 'F' to 1"),
    ('rename = "F"', "'rename' must be a section"),
]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *BAD_STUDIES,
        *((f'[dataset]\ndata = "bonn"\n{text}', message) for text, message in BAD_DATASETS),
        *((f'[[dataset.source]]\ndata = "bonn"\n{text}', message) for text, message in BAD_SOURCES),
    ],
)
def test_datasets_are_refused_with_what_is_wrong_in_them(text, message):
    with pytest.raises(ConfigError, match=message):
        Study.from_toml(text)


def test_the_file_is_named_where_it_is_wrong_or_missing(tmp_path):
    place = tmp_path / "night.toml"
    with pytest.raises(ConfigError, match=r"cannot read the study 'night.toml': No such file"):
        Study.read(place)
    place.write_text("[windows]\nstrid = 3\n[dataset]\ndata = 'bonn'")
    with pytest.raises(ConfigError, match=r"in the study 'night.toml': .*'strid'; did you mean 'stride'"):
        Study.read(place)
    place.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"in the study 'night.toml': .*not UTF-8 in line 1"):
        Study.read(place)


EXTENSION = """
    from torch import nn
    from raxss.method.backbones import register_backbone

    @register_backbone("of-a-test")
    class OfATest(nn.Module):
        answer = {answer}
"""


@pytest.fixture
def _no_extension_stays():
    yield
    BACKBONES.pop("of-a-test", None)
    for name in [name for name in sys.modules if name.startswith("raxss_extension_")]:
        del sys.modules[name]


@pytest.mark.usefixtures("_no_extension_stays")
def test_an_extension_is_imported_once_and_again_when_it_has_changed(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(textwrap.dedent(EXTENSION.format(answer=1)))
    load_extensions([file])
    first = BACKBONES["of-a-test"]
    load_extensions([file])
    assert BACKBONES["of-a-test"] is first
    file.write_text(textwrap.dedent(EXTENSION.format(answer=2)))  # of the same length, within the same second
    load_extensions([file])
    assert BACKBONES["of-a-test"].answer == 2


@pytest.mark.usefixtures("_no_extension_stays")
def test_names_of_an_extension_are_checked_once_it_is_imported(tmp_path):
    (tmp_path / "mine.py").write_text(textwrap.dedent(EXTENSION.format(answer=1)))
    text = '{}extensions = ["mine.py"]\n[dataset]\ndata = "synthetic"\n[system.mine]\nbase = "sss"\nbackbone = "{}"'
    study = Study.from_toml(text.format("", "of-a-test"), folder=tmp_path)
    with pytest.raises(ConfigError, match="'of-a-test', which there is not"):
        study.compared()
    load_extensions(study.extensions)
    assert "mine" in study.compared()
    wrong = Study.from_toml(text.format("", "of-a-tset"), folder=tmp_path)
    with pytest.raises(ConfigError, match=r"'of-a-tset', .* did you mean 'of-a-test'"):
        wrong.compared()


def test_an_extension_that_fails_is_named_with_its_error(tmp_path):
    (tmp_path / "mine.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(
        ConfigError, match=r"'mine.py' cannot be imported: ModuleNotFoundError: .*nothing_of_that_name"
    ):
        load_extensions([tmp_path / "mine.py"])


def test_two_extensions_of_one_name_are_refused(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text("")
    text = 'extensions = ["a/mine.py", "b/mine.py"]\n[dataset]\ndata = "synthetic"'
    with pytest.raises(ConfigError, match=re.escape("2 extensions are called 'mine'")):
        Study.from_toml(text, folder=tmp_path)
