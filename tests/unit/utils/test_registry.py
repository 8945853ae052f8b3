"""Extensions are built in, registered, installed, or named by the user; names from files import nothing."""

import sys
from pathlib import Path

import pytest

from ssorl.utils.errors import DataError, SsorlError
from ssorl.utils.registry import Registry, TrustedName, UntrustedNameError, path_of


class BuiltIn:
    """A built-in extension."""


def check(name, value):
    if not isinstance(value, type):
        raise SsorlError(f"the thing {name} is not a class")
    return value


@pytest.fixture
def things() -> Registry:
    return Registry("thing", "tests.things", "--thing", {"first": BuiltIn}, check)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a function that installs a package with entry points such as "mine=module:Class"."""
    monkeypatch.syspath_prepend(tmp_path)
    installed = []

    def install(*points: str, code: str = "class Thing: pass\n", name: str = "things_package") -> None:
        (tmp_path / f"{name}.py").write_text(
            f"{code}\nfrom pathlib import Path\nPath(__file__).with_suffix('.ran').touch()"
        )
        home = tmp_path / f"{name}-1.0.dist-info"
        home.mkdir()
        (home / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (home / "entry_points.txt").write_text("[tests.things]\n" + "\n".join(points))
        installed.append(name)

    yield install
    for name in installed:
        sys.modules.pop(name, None)


def test_a_registered_extension_is_returned_by_name(things):
    assert things.register("second", dict) is dict
    assert things.find("second") is dict and things.names() == ["first", "second"]
    assert things.name_of(dict) == "second" and things.name_of(BuiltIn) == "first"
    assert things.name_of(list) == "builtins:list"
    assert things.known("second") and not things.known("third") and not things.known(3)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("first", dict, "first is the name of a built-in thing; choose another name"),
        ("two words", dict, "the thing 'two words': give a name of letters"),
        ("../up", dict, "give a name of letters"),
        (3, dict, "the thing 3: give a name"),
        ("second", 3, "the thing second is not a class"),
        ("taken", list, "the thing taken is already builtins:dict; choose another name"),
    ],
)
def test_an_invalid_registration_raises_an_error(things, name, value, message):
    things.register("taken", dict)
    with pytest.raises(SsorlError, match=message):
        things.register(name, value)


def test_a_notebook_cell_may_run_again(things):
    first, second = (type("Mine", (), {}) for _ in range(2))
    for kind in (first, second):
        things.register("mine", kind)
        assert things.find("mine") is kind
    assert things.adopt(second) == "mine"


def test_an_installed_extension_is_imported_when_it_is_looked_up(things, package, tmp_path):
    package("own = things_package:Thing")
    assert things.names() == ["first", "own"] and things.known("own")
    assert not (tmp_path / "things_package.ran").exists()
    extension = things.find("own", source="some.npz")  # a file may name an installed extension
    assert extension.__name__ == "Thing" and things.name_of(extension) == "own"
    assert dict(things.installed()) == {"own": extension}


def test_an_installed_class_has_its_installed_name(things, package):
    """This holds also if the user passes the class before its name has been looked up."""
    package("own = things_package:Thing")
    import things_package

    assert things.name_of(things_package.Thing) == "own"
    assert things.adopt(things_package.Thing) == "own"


def test_an_entry_point_cannot_take_a_built_in_name(things, package, tmp_path):
    package("first = things_package:Thing")
    assert things.find("first") is BuiltIn and not (tmp_path / "things_package.ran").exists()
    import things_package

    assert things.name_of(things_package.Thing) == "things_package:Thing"


def test_two_packages_with_the_same_name_raise_an_error(things, package):
    package("own = things_package:Thing")
    package("own = other_package:Thing", name="other_package")
    with pytest.raises(SsorlError, match=r"several packages install the thing own: other.package, things.package"):
        things.find("own")


@pytest.mark.parametrize(
    ("points", "code", "message"),
    [
        (
            "own = things_package:Thing",
            "import no_such_module",
            r"of the package things.package cannot be loaded \(No mod",
        ),
        ("own = things_package:Gone", "", "the thing own of the package things.package cannot be loaded"),
        ("own = things_package:Thing", "Thing = 3", "the thing own is not a class"),
    ],
)
def test_a_broken_installed_extension_raises_an_error(things, package, points, code, message):
    package(points, code=code)
    with pytest.raises(SsorlError, match=message):
        things.find("own")


def test_only_the_user_may_name_a_module(things, package, tmp_path):
    package(code="class Thing:\n    class Inner: pass\n")
    ran, path = tmp_path / "things_package.ran", "things_package:Thing"
    for name, source, message in (
        (path, "some.npz", f"^some.npz: names the thing '{path}', and files may not import modules; if you trust"),
        (path, None, f"^the thing '{path}' is in a module, and files may not import"),
        ("a:b; rm\n", "some.npz", r"--thing 'a:b; rm\\n'"),
    ):
        with pytest.raises(UntrustedNameError, match=message):
            things.find(name, source)
    assert not ran.exists() and "things_package" not in sys.modules
    thing = things.find(TrustedName(path))
    assert ran.exists() and thing is sys.modules["things_package"].Thing
    assert things.find(path, "some.npz") is thing  # once the user has named it, it is registered in this process
    assert things.find(TrustedName(f"{path}.Inner")) is thing.Inner
    assert things.importable() == {path: path, f"{path}.Inner": f"{path}.Inner"}


def test_an_unknown_name_in_a_file_raises_an_error(things):
    with pytest.raises(DataError, match=r"some.npz: names the thing 'frist', which is not installed here; install its"):
        things.find("frist", "some.npz")
    with pytest.raises(SsorlError, match=r"no thing is called .frist.; did you mean first\?"):
        things.find("frist")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:Thing", r"--thing no_such_module:Thing: the module cannot be imported \(No module named"),
        ("json:Thing", "--thing json:Thing: the module json has no Thing"),
        ("json:dumps", "the thing json:dumps is not a class"),
    ],
)
def test_an_invalid_module_or_attribute_raises_an_error(things, name, message):
    with pytest.raises(SsorlError, match=message):
        things.find(TrustedName(name))


def test_modules_of_the_working_directory_are_found(things, tmp_path, monkeypatch):
    """They are found as with `python -m`, although an installed command does not search there itself."""
    monkeypatch.chdir(tmp_path)
    Path("beside_the_user.py").write_text("class Thing: pass\n")
    before = list(sys.path)
    try:
        assert things.find(TrustedName("beside_the_user:Thing")).__name__ == "Thing"
    finally:
        sys.modules.pop("beside_the_user", None)
    assert sys.path == before


def test_a_whole_module_can_be_an_extension():
    things = Registry("thing", "tests.things", "--thing", {}, lambda name, value: value, modules=True)
    import json

    assert things.find(TrustedName("json")) is json and path_of(json) == "json"
    for name in (TrustedName("no_such_module_here"), "string"):
        with pytest.raises(SsorlError, match=f"no thing is called '{name}'"):
            things.find(name)


def test_local_classes_are_not_importable(things):
    class Local:
        pass

    things.register("local", Local)
    things.register("mine", dict)
    assert things.importable() == {"mine": "builtins:dict"}
