"""`gauntlet verify`: prove a bundle again, without a server or a network."""

import argparse
from pathlib import Path

from rich.console import Console

from flows.cli.shared import existing_file, plain
from gauntlet.reporting.text_format import counted
from wings.verification.library.signing import SignatureResult
from wings.verification.library.verification import Verification, verify


def verify_bundle(options: argparse.Namespace) -> int:
    """Print what was proven; return 1 where something does not hold."""
    result = verify(Path(options.bundle), existing_file(options.key))
    if options.json:
        print(result.model_dump_json(indent=2))  # noqa: T201
    else:
        print_verification(Console(soft_wrap=True, highlight=False), result)
    return 0 if result.passed else 1


def print_verification(console: Console, result: Verification) -> None:
    """Print digests, signatures, golden outputs, and what cannot be proven here."""
    if not result.damage:
        console.print(f"digests: {counted(result.files, 'file')} unchanged, {result.digest}")
    for line in result.damage:
        console.print(f"[bold red]damaged:[/] {plain(line)}")
    for signature in result.signatures:
        if not signature.problem:
            console.print(f"signature: {plain(_signature(signature))}")
    if result.digest and not result.signatures:
        console.print("signature: none; sign with: gauntlet bundle RUN --key KEY.pem")
    for g in result.golden:
        limits = f"allowed {result.golden_tolerance:.3g}; absolute {g.max_abs_error:.3g}"
        console.print(f"golden output {plain(g.output)}: relative difference {g.max_rel_error:.3g} ({limits})")
    for line in result.failures:
        console.print(f"[bold red]failed:[/] {plain(line)}")
    for line in result.unproven:
        console.print(f"[yellow]not proven here:[/] {plain(line)}")
    name = plain(result.bundle)
    console.print(f"[bold green]Verified: {name}[/]" if result.passed else f"[bold red]Not verified: {name}[/]")


def _signature(signature: SignatureResult) -> str:
    key = f"valid, by {signature.identity or f'the key {signature.key[:16]}'}"
    if signature.trusted or signature.identity:
        return key
    return f"{key}; whose key that is, is not proven: name it with --key PUB.pem"
