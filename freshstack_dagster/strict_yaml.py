"""YAML files that people write, read so that a key given twice is an error instead of the last one's silent victory."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from freshstack_dagster.errors import SettingsError


class _Loader(yaml.SafeLoader):
    """Safe YAML in which a key stands once in a mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """As the base class, but a key given twice raises ConstructorError; one from a merge may be replaced."""
        lines: dict[Any, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge" or not isinstance(key_node, yaml.ScalarNode):
                continue
            key = self.construct_object(key_node, deep=True)
            if key in lines:
                raise yaml.constructor.ConstructorError(
                    problem=f"the key {key!r} stands here and on line {lines[key]}; keep one",
                    problem_mark=key_node.start_mark,
                )
            lines[key] = key_node.start_mark.line + 1
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Any:
    """What a YAML file holds, None if it is empty.

    Raises SettingsError that names the file and line if it cannot be read, is no YAML or gives a key twice.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise SettingsError(f"{path}: {where}not valid YAML: {getattr(error, 'problem', error)}") from error
