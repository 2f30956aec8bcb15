"""Options for how tokens are chosen; named as in the contract."""

import argparse

from spearhead.client import SamplingParams, Slo, Speculation


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Adds every sampling parameter, the speculation options and the SLO options."""
    group = parser.add_argument_group("sampling")
    group.add_argument("--max-tokens", type=int, metavar="N", help="most tokens to generate (256)")
    group.add_argument("--min-tokens", type=int, metavar="N", help="no stop before this many (0)")
    group.add_argument("--temperature", type=float, metavar="T", help="0 = greedy (1)")
    group.add_argument("--top-p", type=float, metavar="P", help="nucleus mass (1 = off)")
    group.add_argument("--top-k", type=int, metavar="K", help="keep the K most likely (0 = off)")
    group.add_argument("--min-p", type=float, metavar="P", help="relative threshold (0 = off)")
    group.add_argument("--seed", type=int, metavar="N", help="same seed, same output (random)")
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="stop string; repeatable")
    group.add_argument("--stop-token-id", action="append", default=[], type=int, metavar="ID")
    group.add_argument("--ignore-eos", action="store_true", default=None, help="go on after end of text")
    group.add_argument("--presence-penalty", type=float, metavar="X")
    group.add_argument("--frequency-penalty", type=float, metavar="X")
    group.add_argument("--repetition-penalty", type=float, metavar="X")
    group.add_argument(
        "--logit-bias", action="append", default=[], type=_bias, metavar="ID=BIAS", help="repeatable"
    )
    group.add_argument("--logprobs", type=int, metavar="N", help="log-probabilities and N alternatives")
    group = parser.add_argument_group("serving")
    group.add_argument("--draft-tokens", type=int, metavar="K", help="0 = no speculation (server's choice)")
    group.add_argument("--precision", choices=("default", "full"), default="default")
    group.add_argument("--itl-ms", type=float, metavar="MS", help="wanted time between tokens")
    group.add_argument("--ttft-ms", type=float, metavar="MS", help="wanted time to the first token")


def sampling_from(arguments: argparse.Namespace) -> SamplingParams:
    """The sampling parameters that the options name."""
    return SamplingParams(
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        top_k=arguments.top_k,
        min_p=arguments.min_p,
        seed=arguments.seed,
        max_tokens=arguments.max_tokens,
        min_tokens=arguments.min_tokens,
        stop=arguments.stop,
        stop_token_ids=arguments.stop_token_id,
        ignore_eos=arguments.ignore_eos,
        presence_penalty=arguments.presence_penalty,
        frequency_penalty=arguments.frequency_penalty,
        repetition_penalty=arguments.repetition_penalty,
        logit_bias=dict(arguments.logit_bias),
        logprobs=arguments.logprobs,
    )


def speculation_from(arguments: argparse.Namespace) -> Speculation:
    """The speculation that the options name."""
    return Speculation(max_draft_tokens=arguments.draft_tokens)


def slo_from(arguments: argparse.Namespace) -> Slo:
    """The service levels that the options name."""
    return Slo(itl_ms=arguments.itl_ms, ttft_ms=arguments.ttft_ms)


def _bias(text: str) -> tuple[int, float]:
    token_id, separator, bias = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form ID=BIAS, such as 42=-100")
    return int(token_id), float(bias)
