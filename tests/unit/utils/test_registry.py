"""Extensions by name: built in, registered, installed, or named by the user; a file imports nothing."""

import sys
from pathlib import Path

import pytest

from ssorl.utils.errors import DataError, SsorlError
from ssorl.utils.registry import Registry, TrustedName, UntrustedNameError, path_of


class BuiltIn:
    """Stands for what ssorl has itself."""


def check(name, value):
    if not isinstance(value, type):
        raise SsorlError(f"the thing {name} is no class")
    return value


@pytest.fixture
def things() -> Registry:
    return Registry("thing", "tests.things", "--thing", {"first": BuiltIn}, check)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Install a package with entry points: `install("mine=module:Class", …)` after its code."""
    monkeypatch.syspath_prepend(tmp_path)
    made = []

    def install(*points: str, code: str = "class Thing: pass\n", name: str = "things_package") -> None:
        (tmp_path / f"{name}.py").write_text(
            f"{code}\nfrom pathlib import Path\nPath(__file__).with_suffix('.ran').touch()"
        )
        home = tmp_path / f"{name}-1.0.dist-info"
        home.mkdir()
        (home / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (home / "entry_points.txt").write_text("[tests.things]\n" + "\n".join(points))
        made.append(name)

    yield install
    for name in made:
        sys.modules.pop(name, None)


def test_what_is_registered_is_found(things):
    assert things.register("second", dict) is dict
    assert things.find("second") is dict and things.names() == ["first", "second"]
    assert things.name_of(dict) == "second" and things.name_of(BuiltIn) == "first"
    assert things.name_of(list) == "builtins:list"
    assert things.known("second") and not things.known("third") and not things.known(3)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("first", dict, "first is the built-in thing of that name; choose another name"),
        ("two words", dict, "the thing 'two words': give a name of letters"),
        ("../up", dict, "give a name of letters"),
        (3, dict, "the thing 3: give a name"),
        ("second", 3, "the thing second is no class"),
        ("taken", list, "the thing taken is builtins:dict already; choose another name"),
    ],
)
def test_a_registration_that_cannot_be(things, name, value, said):
    things.register("taken", dict)
    with pytest.raises(SsorlError, match=said):
        things.register(name, value)


def test_a_notebook_cell_may_run_again(things):
    first, second = (type("Mine", (), {}) for _ in range(2))
    for kind in (first, second):
        things.register("mine", kind)
        assert things.find("mine") is kind
    assert things.adopt(second) == "mine"


def test_an_installed_one_is_imported_when_it_is_looked_up(things, package, tmp_path):
    package("own = things_package:Thing")
    assert things.names() == ["first", "own"] and things.known("own")
    assert not (tmp_path / "things_package.ran").exists()
    found = things.find("own", source="some.npz")  # a file may name what is installed
    assert found.__name__ == "Thing" and things.name_of(found) == "own"
    assert dict(things.installed()) == {"own": found}


def test_an_installed_class_has_its_installed_name(things, package):
    """Also where the user passes the class itself before anybody has looked up the name."""
    package("own = things_package:Thing")
    import things_package

    assert things.name_of(things_package.Thing) == "own"
    assert things.adopt(things_package.Thing) == "own"


def test_an_entry_point_cannot_take_a_built_in_name(things, package, tmp_path):
    package("first = things_package:Thing")
    assert things.find("first") is BuiltIn and not (tmp_path / "things_package.ran").exists()
    import things_package

    assert things.name_of(things_package.Thing) == "things_package:Thing"


def test_two_packages_with_one_name(things, package):
    package("own = things_package:Thing")
    package("own = other_package:Thing", name="other_package")
    with pytest.raises(SsorlError, match=r"several packages install the thing own: other.package, things.package"):
        things.find("own")


@pytest.mark.parametrize(
    ("points", "code", "said"),
    [
        (
            "own = things_package:Thing",
            "import no_such_module",
            r"of the package things.package cannot be loaded \(No mod",
        ),
        ("own = things_package:Gone", "", "the thing own of the package things.package cannot be loaded"),
        ("own = things_package:Thing", "Thing = 3", "the thing own is no class"),
    ],
)
def test_an_installed_one_that_is_broken(things, package, points, code, said):
    package(points, code=code)
    with pytest.raises(SsorlError, match=said):
        things.find("own")


def test_only_the_user_may_name_a_module(things, package, tmp_path):
    package(code="class Thing:\n    class Inner: pass\n")
    ran, path = tmp_path / "things_package.ran", "things_package:Thing"
    for name, source, said in (
        (path, "some.npz", f"^some.npz: names the thing '{path}', and files may not import a module; if you trust"),
        (path, None, f"^the thing '{path}' is of a module, and files may not import"),
        ("a:b; rm\n", "some.npz", r"--thing 'a:b; rm\\n'"),
    ):
        with pytest.raises(UntrustedNameError, match=said):
            things.find(name, source)
    assert not ran.exists() and "things_package" not in sys.modules
    found = things.find(TrustedName(path))
    assert ran.exists() and found is sys.modules["things_package"].Thing
    assert things.find(path, "some.npz") is found  # named once, it is known in this process
    assert things.find(TrustedName(f"{path}.Inner")) is found.Inner
    assert things.importable() == {path: path, f"{path}.Inner": f"{path}.Inner"}


def test_a_name_from_a_file_that_nobody_has(things):
    with pytest.raises(DataError, match=r"some.npz: names the thing 'frist', which is not installed here; install the"):
        things.find("frist", "some.npz")
    with pytest.raises(SsorlError, match=r"no thing is called .frist.; did you mean first\?"):
        things.find("frist")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module:Thing", r"--thing no_such_module:Thing: the module cannot be imported \(No module named"),
        ("json:Thing", "--thing json:Thing: the module json has no Thing"),
        ("json:dumps", "the thing json:dumps is no class"),
    ],
)
def test_a_module_that_does_not_have_it(things, name, said):
    with pytest.raises(SsorlError, match=said):
        things.find(TrustedName(name))


def test_a_module_beside_the_user_is_found(things, tmp_path, monkeypatch):
    """As it is with `python -m`: an installed command does not look into the working directory by itself."""
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


def test_what_no_other_process_can_import(things):
    class Local:
        pass

    things.register("local", Local)
    things.register("mine", dict)
    assert things.importable() == {"mine": "builtins:dict"}
