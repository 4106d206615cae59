"""Parameters: signature, docstring and settings agree, for estimators and for all public functions and classes."""

import dataclasses
import importlib
import inspect
import pkgutil
import re
from typing import get_type_hints

import pytest
from sklearn.base import clone

import raxss
from raxss import Config, RAxSSClassifier
from raxss.benchmark.baselines.forest import ForestClassifier
from raxss.benchmark.baselines.mil import MILClassifier
from raxss.benchmark.baselines.rocket import RocketClassifier
from raxss.benchmark.baselines.sequences import SequenceClassifier
from raxss.benchmark.baselines.trivial import AllPositiveClassifier
from raxss.estimator import classifier

ESTIMATORS = [
    RAxSSClassifier,
    AllPositiveClassifier,
    ForestClassifier,
    MILClassifier,
    RocketClassifier,
    SequenceClassifier,
]
NOT_SETTINGS = {"device", "callbacks", "verbose", "random_state"}  # they change how, not what is computed
OWN_FORM = {  # a setting that a parameter writes in another form: its default in the signature
    "backbone_options": None,
    "class_weight": None,
}


def defaults_of(estimator):
    return {name: parameter.default for name, parameter in inspect.signature(estimator).parameters.items()}


def documented(item):
    """Names before each description of the section Parameters, in their order; None without such a section."""
    text = inspect.getdoc(item) or ""
    section = re.search(r"(?:^|\n)Parameters\n-+\n(.*?)(?:\n\n(?=\S)|\Z)", text, re.S)
    heads = [line for line in section[1].splitlines() if re.match(r"\S", line)] if section else None
    return heads and [name.lstrip("*") for line in heads for name in line.split(", ")]


def callables():
    """(path, function or class) of all that the modules of the package define, methods of classes included."""
    for module in pkgutil.walk_packages(raxss.__path__, "raxss."):
        if module.name.endswith("__main__"):
            continue
        for name, item in vars(importlib.import_module(module.name)).items():
            if getattr(item, "__module__", None) == module.name and callable(item):
                yield f"{module.name}.{name}", item
                for own, method in vars(item).items() if inspect.isclass(item) else ():
                    method = getattr(method, "__func__", method)
                    if inspect.isfunction(method):
                        yield f"{module.name}.{name}.{own}", method


def test_every_documented_parameter_is_one_of_the_signature():
    described = {path: (item, documented(item)) for path, item in callables()}
    wrong = {
        path: set(names) - set(inspect.signature(item).parameters)
        for path, (item, names) in described.items()
        if names
    }
    assert len(wrong) > 40  # the walk finds what is documented
    assert {path: names for path, names in wrong.items() if names} == {}


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_parameter_is_documented_once_and_nothing_else_is(estimator):
    assert sorted(documented(estimator)) == sorted(defaults_of(estimator))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_parameters_are_kept_as_given(estimator):
    given = {name: object() for name in defaults_of(estimator)}
    made = estimator(**given)
    assert {name: getattr(made, name) for name in given} == given
    assert made.get_params(deep=False) == given
    unset = estimator()
    assert {name: getattr(unset, name) for name in given} == defaults_of(estimator)
    assert clone(unset).get_params() == unset.get_params()


def test_defaults_of_the_signature_are_those_of_the_settings():
    found = {name: value for name, value in defaults_of(RAxSSClassifier).items() if name not in NOT_SETTINGS}
    assert {name: found[name] for name in OWN_FORM} == OWN_FORM
    settings = Config().parameters()
    assert {name: repr(value) for name, value in found.items() if name not in OWN_FORM} == {
        name: repr(value) for name, value in settings.items() if name not in OWN_FORM
    }


def test_types_of_the_signature_are_those_of_the_settings():
    hints = get_type_hints(RAxSSClassifier.__init__, vars(classifier))
    paper = Config.preset("paper")  # with a section for every stage
    for stage in dataclasses.fields(Config):
        home = type(getattr(paper, stage.name))
        fields = get_type_hints(home, vars(inspect.getmodule(home)))
        for name in {field.name for field in dataclasses.fields(home)} & set(hints) - set(OWN_FORM):
            assert hints[name] == fields[name], name
