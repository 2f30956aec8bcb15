"""Model folders: readable, supported, and two that agree on their vocabulary."""

from collections.abc import Iterator

from spearhead.cli.checks.finding import Finding
from spearhead.errors import SpearheadError


def check_models(target: str, draft: str | None) -> Iterator[Finding]:
    """Opens the target and, when given, the draft; compares their tokenizers.

    Args:
        target: Folder, .gguf file or hub id.
        draft: The same, or ``None``.
    """
    hashes = {}
    for role, location in (("target", target), ("draft", draft)):
        if location is not None:
            finding, hashes[role] = _check_model(role, location)
            yield finding
    if hashes.get("target") and hashes.get("draft"):
        yield check_agreement(hashes["target"], hashes["draft"])


def check_agreement(target_hash: str, draft_hash: str) -> Finding:
    """Whether both tokenizers are the same: vocabulary, merges and special ids."""
    return Finding(
        subject="vocabulary of target and draft",
        ok=target_hash == draft_hash,
        text="equal" if target_hash == draft_hash else f"target {target_hash}, draft {draft_hash}",
        remedy="choose a draft of the target's own family, or --draft ngram, which needs no model",
    )


def _check_model(role: str, location: str) -> tuple[Finding, str]:
    # Imported here: torch takes seconds to load, and the other commands do without it.
    from spearhead.model.checkpoint import open_checkpoint
    from spearhead.tokenizer import Tokenizer

    try:
        checkpoint = open_checkpoint(location)
        try:
            tokenizer = Tokenizer.load(checkpoint.path)
            text = f"{location}: {', '.join(checkpoint.variants)}, {tokenizer.vocab_size} tokens"
        finally:
            checkpoint.close()
    except SpearheadError as error:
        remedy = "give a folder with config.json, tokenizer.json and safetensors, a .gguf file, or a hub id"
        return Finding(subject=f"{role} model", ok=False, text=error.message, remedy=remedy), ""
    return Finding(subject=f"{role} model", ok=True, text=text), tokenizer.hash
