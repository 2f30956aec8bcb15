"""The page's style sheet, light and dark; a colour for each cause."""

from typing import Final

from spearhead.trace.markup import Markup
from spearhead.trace.tiles import Cause

# In the light, in the dark. Work is blue and green, waiting for others is warm.
_COLOURS: Final = {
    Cause.QUEUE: ("#c98500", "#f0b13c"),
    Cause.PREFILL_OF_OTHERS: ("#d1440c", "#ff7a45"),
    Cause.OWN_PREFILL: ("#0a7f8f", "#35bfd0"),
    Cause.DRAFT: ("#5b9a2f", "#86cf55"),
    Cause.VERIFY: ("#2866b1", "#62a0ee"),
    Cause.REJECTION: ("#8a5a9e", "#c191d8"),
    Cause.NETWORK: ("#7a6cd0", "#a99cf5"),
    Cause.SCHEDULER: ("#8b949e", "#a7b0ba"),
    Cause.WORKER_STALL: ("#b3267a", "#f06ab4"),
    Cause.WORKER_RESTART: ("#a11d1d", "#ff6b6b"),
    Cause.PREEMPTION: ("#94622c", "#d69e63"),
    Cause.SLOW_READER: ("#475f4a", "#90b295"),
    Cause.UNATTRIBUTED: ("#d0d5da", "#444c55"),
}


def css_class(cause: Cause) -> str:
    """The class that gives an element the colour of a cause."""
    return f"c-{cause.value.replace(' ', '-')}"


def _variables(index: int) -> str:
    return ";".join(f"--{css_class(cause)}:{colours[index]}" for cause, colours in _COLOURS.items())


_RULES: Final = """
*{box-sizing:border-box}
body{margin:0 auto;max-width:1160px;padding:28px 22px 60px;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
h1{font-size:26px;margin:0}h2{font-size:19px;margin:36px 0 8px;overflow-wrap:anywhere}
h3{font-size:15px;margin:18px 0 4px}p{margin:6px 0}
.quiet,figcaption{color:var(--quiet);font-size:13px}
.warn{background:var(--panel);border-left:4px solid var(--c-worker-restart);padding:6px 12px;margin:8px 0}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:13px;margin:14px 0}
.legend i,td i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px;
background:var(--c)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:4px 10px;text-align:right;border-bottom:1px solid var(--rule);vertical-align:top}
th{color:var(--quiet);font-weight:600}
th:first-child,td:first-child,.l{text-align:left}td.l{overflow-wrap:anywhere}
details{border-bottom:1px solid var(--rule);padding:5px 0}
summary{cursor:pointer;font-size:14px}
summary b{color:var(--c)}
figure{margin:8px 0}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--ink);font:12px system-ui,"DejaVu Sans",sans-serif}
svg .q{fill:var(--quiet)}svg .e{text-anchor:end}
svg rect{fill:var(--c)}svg .rule{stroke:var(--rule);fill:none}
svg .s-queue{fill:var(--c-queue)}svg .s-prefill{fill:var(--c-own-prefill)}svg .s-decode{fill:var(--c-verify)}
svg .usual{fill:var(--faint)}
a{color:var(--link)}
@media print{details:not([open])>*{display:block}}
"""

STYLE: Final = Markup(
    ":root{color-scheme:light dark;--page:#fff;--panel:#f5f6f8;--ink:#1c2127;--quiet:#5d6772;--rule:#dde1e6;"
    f"--faint:#c3cad2;--link:#1f5fae;{_variables(0)}}}"
    "@media(prefers-color-scheme:dark){:root{--page:#15181c;--panel:#1f242a;--ink:#e5e8eb;--quiet:#9aa4ae;"
    f"--rule:#333a42;--faint:#4d5660;--link:#7fb4f5;{_variables(1)}}}}}"
    + "".join(f".{css_class(cause)}{{--c:var(--{css_class(cause)})}}" for cause in _COLOURS)
    + _RULES
)
"""CSS that asks for nothing from elsewhere."""
