#include "core/engine/report_page.h"

namespace dsec::engine {

const char* const kReportStyle = R"(
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#59636e;--paper:#fff;--field:#f6f8fa;--line:#d1d9e0;--good:#1a7f37;
--bad:#c21f2e;--odd:#8a5a00;--link:#0b5cc2}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9aa4af;--paper:#10151b;--field:#181f27;--line:#36404b;
--good:#4ac26b;--bad:#ff7b72;--odd:#e0a63a;--link:#6cb2ff}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.5rem;max-width:76rem;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:0 0 .5rem;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:2rem 0 .5rem;border-bottom:1px solid var(--line)}
h3{font-size:1rem;font-weight:400;margin:0;display:flex;gap:.75rem;align-items:baseline;flex-wrap:wrap}
h4{font-size:.85rem;margin:.75rem 0 .25rem;color:var(--soft);font-weight:600}
a{color:var(--link)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem;margin:0}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
pre,code{font:13px/1.45 ui-monospace,monospace}
pre{margin:.25rem 0;padding:.6rem .75rem;background:var(--field);border:1px solid var(--line);border-radius:4px;
white-space:pre-wrap;overflow-wrap:anywhere;unicode-bidi:isolate}
details>summary{cursor:pointer;color:var(--soft)}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{text-align:left;padding:.2rem .6rem .2rem 0;border-bottom:1px solid var(--line);vertical-align:top;
overflow-wrap:anywhere}
th{color:var(--soft);font-weight:600}
.scroll{overflow-x:auto}
.skip{position:absolute;left:-99rem}.skip:focus{position:static}
nav a{margin-right:1rem}
.controls{display:none;gap:.5rem;flex-wrap:wrap;align-items:center;margin:.5rem 0}
.scripted .controls{display:flex}
button{font:inherit;color:inherit;background:var(--field);border:1px solid var(--line);border-radius:4px;
padding:.2rem .7rem;cursor:pointer}
button[aria-pressed=true]{border-color:var(--link);color:var(--link)}
.op{border:1px solid var(--line);border-left:4px solid var(--good);border-radius:4px;padding:.5rem .75rem;margin:.5rem 0}
.op.failed{border-left-color:var(--bad)}.op.odd{border-left-color:var(--odd)}
.op:focus{outline:2px solid var(--link);outline-offset:1px}
.op h3 code{flex:1 1 20rem;overflow-wrap:anywhere}
.took,.at{color:var(--soft);font-variant-numeric:tabular-nums;white-space:nowrap}
.good{color:var(--good)}.bad{color:var(--bad)}.odd>h3 .outcome{color:var(--odd)}
.stderr{color:var(--bad)}.mark{color:var(--odd)}.add{color:var(--good)}.del{color:var(--bad)}
.op.changed h3::after{content:"differs";color:var(--odd)}
svg{width:100%;height:auto;display:block;background:var(--field);border:1px solid var(--line);border-radius:4px}
svg rect{fill:var(--good)}svg .failed rect{fill:var(--bad)}svg .odd rect{fill:var(--odd)}
svg text{fill:var(--soft);font:11px system-ui,sans-serif}
svg a:focus rect{stroke:var(--link);stroke-width:2}
[hidden]{display:none}
@media print{:root{--ink:#000;--soft:#444;--paper:#fff;--field:#fff;--line:#999;--good:#000;--bad:#000;--odd:#000;
--link:#000}body{max-width:none;padding:0}.controls,.scripted .controls,nav{display:none}
h3,h4{break-after:avoid}.op{break-inside:auto}a{text-decoration:none}}
)";

const char* const kReportScript = R"(
(() => {
  const all = [...document.querySelectorAll('.op')];
  const root = document.documentElement;
  const shown = () => all.filter(op => !op.hidden);
  const count = document.getElementById('shown');
  const filters = {all: () => true, failed: op => op.matches('.failed,.odd'), changed: op => op.matches('.changed')};
  const filter = name => {
    for (const op of all) op.hidden = !filters[name](op);
    for (const button of document.querySelectorAll('[data-filter]'))
      button.setAttribute('aria-pressed', String(button.dataset.filter === name));
    count.textContent = shown().length + ' of ' + all.length;
  };
  const unfold = open => { for (const part of document.querySelectorAll('.op details')) part.open = open; };
  const go = step => {
    const ops = shown(), at = ops.findIndex(op => op.contains(document.activeElement));
    const next = ops[at < 0 ? (step > 0 ? 0 : ops.length - 1) : Math.min(Math.max(at + step, 0), ops.length - 1)];
    if (next) { next.focus(); next.scrollIntoView({block: 'nearest'}); }
  };
  document.addEventListener('click', event => {
    const button = event.target.closest('button');
    if (!button) return;
    if (button.dataset.filter) filter(button.dataset.filter);
    if (button.dataset.unfold) unfold(button.dataset.unfold === 'all');
  });
  document.addEventListener('keydown', event => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest('input,textarea')) return;
    if (event.key === 'j' || event.key === 'k') go(event.key === 'j' ? 1 : -1);
    if (event.key === 'e') unfold(true);
    if (event.key === 'f') unfold(false);
  });
  let folded = [];
  addEventListener('beforeprint', () => {
    folded = [...document.querySelectorAll('details:not([open])')];
    for (const part of folded) part.open = true;
  });
  addEventListener('afterprint', () => { for (const part of folded) part.open = false; });
  filter('all');
  root.classList.add('scripted');
  root.dataset.operations = all.length;
})();
)";

}  // namespace dsec::engine
