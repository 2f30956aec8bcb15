"""The page's style sheet: light, dark and paper."""

from typing import Final

from spearhead.quant.report.markup import Markup

# Okabe and Ito's colours, darkened or lightened until lines stand out from the page.
_LIGHT = """
--page:#fff;--panel:#f6f7f9;--text:#1b1f24;--quiet:#59636e;--line:#d5dae0;--grid:#e8ebef;--accent:#0b62a8;
--s0:#0067a8;--s1:#c84e00;--s2:#00805c;--s3:#a8428a;--s4:#9a6a00;--s5:#3294c9;--s6:#7a5a46;--s7:#7c848d;--s8:#5d55b5;
--h0:#f3f6fb;--h1:#dce9f6;--h2:#c2dbef;--h3:#9fcae5;--h4:#74b3d8;--h5:#2f80b9;--h6:#1f69a6;--h7:#125190;
--h8:#083665;--dark-cell:#1b1f24;--bright-cell:#fff;--warn:#8a4b00;--warn-page:#fff5e5"""
_DARK = """
--page:#14171b;--panel:#1d2126;--text:#e6e9ed;--quiet:#9da7b1;--line:#3a414a;--grid:#282d34;--accent:#6cb6ff;
--s0:#4db1f0;--s1:#ff8a47;--s2:#2cc796;--s3:#e08ac4;--s4:#e0a92e;--s5:#8ad0f5;--s6:#c6a48e;--s7:#9da7b1;--s8:#a79df2;
--h0:#1a1f26;--h1:#1b2c3d;--h2:#1b3c58;--h3:#1d4f78;--h4:#236699;--h5:#3a84ba;--h6:#62a7d6;--h7:#97cbea;
--h8:#d4ebf9;--dark-cell:#e6e9ed;--bright-cell:#0c1116;--warn:#ffc46b;--warn-page:#2c2213"""
_SERIES = "".join(f".s{index}{{--c:var(--s{index})}}" for index in range(9))
_HEAT = "".join(f".h{index} rect{{fill:var(--h{index})}}" for index in range(9))

_RULES: Final = """
*{box-sizing:border-box}
body{margin:0 auto;padding:32px 24px 64px;max-width:1120px;background:var(--page);color:var(--text);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
h1{font-size:28px;line-height:1.2;margin:0 0 4px}
h2{font-size:20px;margin:40px 0 12px;padding-top:12px;border-top:1px solid var(--line)}
h3{font-size:15px;margin:20px 0 6px}
p{margin:8px 0;max-width:75ch}
.quiet,figcaption,caption{color:var(--quiet);font-size:13px}
.lead{font-size:16px;margin-top:16px}
.model{color:var(--quiet);overflow-wrap:anywhere}
nav{margin:16px 0;display:flex;flex-wrap:wrap;gap:4px 18px}
a{color:var(--accent)}
.warnings{margin:16px 0;padding:10px 14px 10px 32px;background:var(--warn-page);color:var(--warn);
border-radius:6px}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(300px,1fr));gap:16px;margin:16px 0}
.card{background:var(--panel);border-radius:8px;padding:14px 18px;break-inside:avoid}
.card h3{margin:0 0 6px;overflow-wrap:anywhere}
.card dl{margin:0}
.card dl div{display:grid;grid-template-columns:108px 1fr;padding:4px 0}
.card dt{color:var(--quiet)}
.card dd{margin:0;font-variant-numeric:tabular-nums}
.card dd span{color:var(--quiet);font-size:13px}
.card .final b{font-size:24px;line-height:1.1;color:var(--accent)}
.card .final span{display:block;color:var(--text)}
.facts{display:grid;grid-template-columns:max-content 1fr;gap:4px 20px;margin:12px 0}
.facts dt{color:var(--quiet)}
.facts dd{margin:0;overflow-wrap:anywhere}
pre{background:var(--panel);border-radius:6px;padding:12px 14px;white-space:pre-wrap;overflow-wrap:anywhere;
font-size:13px}
figure{margin:16px 0;break-inside:avoid}
figcaption{max-width:75ch}
.panels{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:8px 28px}
.panels figure{margin:8px 0}
.legend{display:flex;flex-wrap:wrap;gap:4px 20px;margin:16px 0 4px;font-size:13px}
.legend span{display:inline-flex;align-items:center;gap:7px}
figure{overflow-x:auto}
.scroll{overflow-x:auto;margin:12px 0}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}
caption{text-align:left;padding:0 0 6px}
th,td{padding:4px 10px;border-bottom:1px solid var(--line);text-align:right;vertical-align:top;
white-space:nowrap}
thead th{color:var(--quiet);font-weight:600;vertical-align:bottom;white-space:normal;min-width:60px}
tbody th{font-weight:600}
th:first-child,.t,.p{text-align:left}
td.p{white-space:normal;min-width:200px;overflow-wrap:anywhere}
tbody tr:hover{background:var(--panel)}
details{margin:12px 0}
summary{cursor:pointer;color:var(--accent)}
svg{max-width:100%;height:auto;display:block;overflow:visible;
font:12px system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif}
svg text{fill:var(--text);font-variant-numeric:tabular-nums;paint-order:stroke;stroke:var(--page);
stroke-width:3px;stroke-linejoin:round}
svg .middle{text-anchor:middle}
svg .end{text-anchor:end}
svg .strong{font-weight:600}
svg .axes text,svg .name{fill:var(--quiet)}
svg path{fill:none}
.grid{stroke:var(--grid)}
.edge{stroke:var(--line)}
.heat rect{stroke:var(--page)}
.heat g text{text-anchor:middle;stroke:none;fill:var(--dark-cell)}
.heat .h5 text,.heat .h6 text,.heat .h7 text,.heat .h8 text{fill:var(--bright-cell)}
svg .bars{fill:var(--s5)}
.mark-line path{stroke:var(--c);stroke-width:1.5}
.mark-line text{fill:var(--c);font-weight:600}
.mark-line.effective{--c:var(--s1)}
.mark-line.effective path{stroke-dasharray:6 4}
.mark-line.chosen{--c:var(--text)}
.line{stroke:var(--c);stroke-width:1.4;stroke-linejoin:round}
.ours .line{stroke-width:2.8}
.control .line{stroke-dasharray:4 3}
.thin{stroke-width:1;opacity:.45}
.thick{stroke-width:2.2}
.mark{fill:var(--c);stroke:var(--page);stroke-width:1}
.ring{fill:var(--page);stroke:var(--c);stroke-width:2.2}
.reference path{stroke:var(--quiet);stroke-dasharray:2 3}
.reference text{fill:var(--quiet)}
.whisker{stroke:var(--quiet);stroke-width:1.5}
.dot{fill:var(--s0);stroke:var(--s0);stroke-width:2}
.dropped .dot{fill:var(--page)}
.dropped text{fill:var(--quiet)}
.swatch{flex:none;overflow:hidden}
@media screen and (max-width:960px){
body{padding:20px 14px 48px}figure svg{max-width:none}.panels svg{max-width:100%}
.facts{grid-template-columns:1fr}.facts dt{margin-top:6px}}
@page{margin:14mm}
@media print{.panels{grid-template-columns:1fr 1fr}.panels figure{margin:4px 0}
body{max-width:none;padding:0;font-size:12px}nav,.scroll{overflow:visible}nav{display:none}
h2,h3,caption,thead,.legend{break-after:avoid}tr,.card,.legend{break-inside:avoid}thead{display:table-header-group}table{font-size:10px}
th,td{padding:2px 5px;white-space:normal}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""

STYLE: Final = Markup(
    f":root{{color-scheme:light dark;{_LIGHT}}}"
    f"@media screen and (prefers-color-scheme:dark){{:root{{{_DARK}}}}}"
    f"{_SERIES}{_HEAT}{_RULES}"
)
"""CSS without any reference to another file."""
