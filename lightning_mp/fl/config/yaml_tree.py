"""A YAML file as plain values, together with the line that each of them stands in."""

from typing import Any

import yaml

from lightning_mp.fl.config.setting_error import SettingError

__all__ = ["YamlTree"]

# devices -> entry -> list -> item; deeper is a mistake, or an alias that contains itself.
_DEEPEST = 4


class YamlTree:
    r"""Read YAML text strictly: no repeated keys, no keys but words, nothing nested too deep.

    Args:
        text: Content of the file.
        name: Name of the file, for errors.

    Attributes:
        content: Dictionaries, lists and scalars.

    Raises:
        ValueError: The text is not YAML of this kind; the message has file and line.

    Example:
        >>> tree = YamlTree("devices:\n- {type: cpu}", "config.yaml")
        >>> tree.content, tree.line("devices[0].type")
        ({'devices': [{'type': 'cpu'}]}, 2)
    """

    def __init__(self, text: str, name: str) -> None:
        self._name = name
        self._lines: dict[str, int] = {}
        try:
            self._scalars = yaml.SafeLoader("")
            node = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.YAMLError as error:
            raise self._syntax_error(error) from error
        self.content = None if node is None else self._plain(node, "", 0)

    def line(self, path: str) -> int:
        """Look up the line of a setting, or of the nearest that contains it.

        Args:
            path: Such as ``"devices[1].count"``.

        Returns:
            Line number, from 1 on.
        """
        while path and path not in self._lines:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self._lines.get(path, 1)

    def error(self, message: str, path: str) -> ValueError:
        """Make the error of a setting.

        Args:
            message: What is wrong with it.
            path: The setting.

        Returns:
            The error to raise, with file and line.
        """
        return ValueError(f"{self._name}, line {self.line(path)}: {message}")

    def refusal(self, error: SettingError, section: str = "") -> ValueError:
        """Add file and line to the error of a record.

        Args:
            error: What the record raised.
            section: Path of the record; empty for the whole file.

        Returns:
            The error to raise.
        """
        prefix = f"{section}." if section else ""
        return self.error(f"{prefix}{error}", f"{prefix}{error.setting}")

    def _plain(self, node: yaml.Node, path: str, depth: int) -> Any:
        self._lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if depth == _DEEPEST:
            raise self.error(
                f"{path} is nested too deep; allowed: sections, lists and single values; remove "
                "the inner brackets",
                path,
            )
        if isinstance(node, yaml.SequenceNode):
            return [
                self._plain(item, f"{path}[{place}]", depth + 1)
                for place, item in enumerate(node.value)
            ]
        return self._mapping(node, path, depth)

    def _mapping(self, node: yaml.Node, path: str, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            inner = f"{path}.{key}" if path else str(key)
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise ValueError(
                    f"{self._name}, line {line}: a list or mapping stands in place of a key; "
                    "allowed: words; write key: value"
                )
            if key in result:
                raise ValueError(
                    f"{self._name}, line {line}: {inner} stands there twice, first in line "
                    f"{self.line(inner)}; allowed: each key once; remove one of them"
                )
            self._lines[inner] = line
            result[str(key)] = self._plain(value_node, inner, depth + 1)
        return result

    def _scalar(self, node: yaml.ScalarNode, path: str) -> Any:
        try:
            return self._scalars.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            raise self.error(
                f"{path} = {node.value!r} with tag {node.tag!r}; allowed: plain values; write it "
                "without a tag, a word in quotes",
                path,
            ) from error

    def _syntax_error(self, error: yaml.YAMLError) -> ValueError:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = 1 if mark is None else mark.line + 1
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        return ValueError(
            f"{self._name}, line {line}: this is not YAML ({what}); allowed: one YAML document; "
            "correct the line"
        )
