"""Registries: the variants of one axis of the architecture, by the name that a config uses."""

from difflib import get_close_matches


class Registry(dict):
    """Variants by name. Looking up an unknown name raises a ValueError that lists the known ones.

    >>> NORMS = Registry("norm_type", {"layernorm": nn.LayerNorm})
    >>> NORMS["mine"] = MyNorm  # a config may name it from then on; in the file itself, it travels to the Hub too
    """

    def __init__(self, field: str, variants: dict):
        super().__init__(variants)
        self.field = field

    def __missing__(self, name):
        close = get_close_matches(str(name), self, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"`{self.field}` is {name!r}, but must be one of {sorted(self)}.{hint}")
