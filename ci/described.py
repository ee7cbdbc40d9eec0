"""Makes the project's description for package indexes, from README.md: a relative link leads nowhere there."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


def described(text: str, source: str | None) -> str:
    """Return a README with links into `source`, such as `https://HOST/OWNER/tfdock/blob/v1.0.0`.

    Without `source` the words of a link stay, and a relative picture goes.
    """
    text = re.sub(r"!\[[^\]]*\]\((?!https://)[^)]+\)\n*", "", text)
    return re.sub(r"\[([^\]]+)\]\((?!https://)([^)]+)\)", rf"[\1]({source}/\2)" if source else r"\1", text)


class Description(MetadataHookInterface):
    """Fills in `readme`, which pyproject.toml names dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        address = metadata.get("urls", {}).get("Source")
        source = f"{address}/blob/v{metadata['version']}" if address else None
        text = described((Path(self.root) / "README.md").read_text("utf-8"), source)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
