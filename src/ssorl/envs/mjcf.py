"""Read a MuJoCo model from an MJCF file that comes from anywhere: the file can refer to no other file and to no plugin.

MuJoCo opens every path that a model names and loads the plugins that it names. Hence the file is parsed and checked
before MuJoCo sees its text.
"""

# MuJoCo is a compiled module without stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING

from ssorl.utils.errors import DataError
from ssorl.utils.extras import require
from ssorl.utils.registry import shown

if TYPE_CHECKING:
    import mujoco

MAX_BYTES = 20_000_000  # size of a file; robots without meshes have a few hundred kilobytes
MAX_PIXELS = 4096  # width and height of a procedural texture, rows and columns of a height field
# Elements that read files or code, or that generate any number of bodies from a few characters.
REFUSED = {
    "include": "reads another file",
    "plugin": "loads code",
    "extension": "loads code",
    "model": "reads another file",
    "replicate": "generates bodies",
    "composite": "generates bodies",
    "flexcomp": "generates bodies",
}
SIZES = ("width", "height", "nrow", "ncol")


def read_mjcf(path: Path) -> mujoco.MjModel:
    """Return the compiled model of an MJCF file.

    Raises:
        DataError: the file cannot be read, is not MJCF, refers to another file or a plugin, or does not compile.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as err:
        raise DataError(f"{path}: cannot be read ({err.strerror}); name an environment or an MJCF file") from err
    if len(raw) > MAX_BYTES:
        raise DataError(f"{path}: is larger than {MAX_BYTES // 1_000_000} MB; give a model without embedded data")
    return compile_mjcf(raw, str(path))


def compile_mjcf(raw: bytes, where: str) -> mujoco.MjModel:
    """Return the compiled model of MJCF text, after the checks of `read_mjcf`.

    Args:
        raw: the text.
        where: name of its source, for messages.
    """
    # A document type can define entities that expand to any size, in any encoding that expat knows.
    text = _decode(raw, where)
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise DataError(f"{where}: declares a document type, which no model needs; remove it")
    try:
        root = ET.fromstring(text)
    except (ET.ParseError, ValueError, RecursionError) as err:
        raise DataError(f"{where}: is not valid XML ({shown(err)}); give an MJCF file") from err
    if root.tag != "mujoco":
        raise DataError(f"{where}: its root element is <{shown(root.tag)}>, not <mujoco>; give an MJCF file")
    for element in root.iter():
        _check(element, where)
    require("sim", "mujoco")
    import mujoco

    from ssorl.envs.locomotion import no_warnings

    try:
        with no_warnings():
            # The tree that was checked, not the text: MuJoCo's parser might read the text differently.
            return mujoco.MjModel.from_xml_string(ET.tostring(root, encoding="unicode"))
    except (ValueError, RecursionError) as err:
        reason = " ".join(str(err).split())
        raise DataError(f"{where}: MuJoCo cannot compile the model ({shown(reason)}); correct the file") from err


def _decode(raw: bytes, where: str) -> str:
    """Return the text without its XML declaration, which a parser of text must not see."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        raise DataError(f"{where}: is not UTF-8 text; save the model as UTF-8") from err
    if text.lstrip().startswith("<?xml"):
        text = text.partition("?>")[2]
    return text


def _check(element: ET.Element, where: str) -> None:
    """Raise DataError if an element could reach a file, load code, or fill the memory."""
    tag = _plain(str(element.tag))
    if tag in REFUSED:
        raise DataError(
            f"{where}: has the element <{tag}>, which {REFUSED[tag]} and is not allowed; save the model as one file "
            "without it"
        )
    for full_name, value in element.attrib.items():
        name = _plain(full_name)
        # Meshes, textures, height fields and skins have `file`; textures have `fileup`, `fileleft`, … as well.
        if name.startswith("file") and value:
            raise DataError(
                f"{where}: <{tag} {name}={shown(value)!r}> refers to another file, which is not allowed; use simple "
                "geometries, or embed the vertices of meshes"
            )
        if name in SIZES and any(_number(part) > MAX_PIXELS for part in value.split()):
            raise DataError(f"{where}: <{tag} {name}={shown(value)!r}> is above {MAX_PIXELS}; give a smaller one")


def _plain(name: str) -> str:
    """Return a name without its namespace, in lower case."""
    return name.rpartition("}")[2].lower()


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0  # MuJoCo names the mistake when it compiles the model
