// Live parts of the console. Every page works without this script.
'use strict';
(() => {
  document.documentElement.classList.add('scripted');

  // What is marked data-live on a page is replaced by what the server sends for the same address.
  let took = 0; // milliseconds of the server for the last page
  const load = async (url, signal) => {
    const response = await fetch(url, { headers: { Accept: 'text/html' }, signal, credentials: 'same-origin' });
    if (response.redirected) { location.assign(response.url); return null; }
    if (!response.ok) return null;
    took = Number(/dur=([\d.]+)/.exec(response.headers.get('Server-Timing'))?.[1] ?? 0);
    return new DOMParser().parseFromString(await response.text(), 'text/html');
  };
  const isUsed = (part) => part.contains(document.activeElement) || part.querySelector('details[open]');
  const replace = (page, evenIfUsed) => {
    for (const part of document.querySelectorAll('[data-live]')) {
      const fresh = page.getElementById(part.id);
      if (!fresh || fresh.isEqualNode(part) || (!evenIfUsed && isUsed(part))) continue;
      part.replaceWith(document.importNode(fresh, true));
    }
  };

  // Search as one types: the form is sent after a quiet moment, and the address of the page follows.
  let searching = null;
  const search = async (form) => {
    const query = new URLSearchParams(new FormData(form));
    for (const [name, value] of [...query]) if (!value) query.delete(name);
    const url = form.getAttribute('action') + (query.size ? '?' + query : '');
    searching?.abort();
    searching = new AbortController();
    const parts = document.querySelectorAll('[data-live]');
    parts.forEach((part) => part.classList.add('busy'));
    try {
      const page = await load(url, searching.signal);
      if (page) { history.replaceState(null, '', url); replace(page, true); }
    } catch (error) {
      if (error.name !== 'AbortError') form.submit();
    } finally {
      parts.forEach((part) => part.classList.remove('busy'));
    }
  };
  let quiet = 0;
  document.addEventListener('input', (event) => {
    const form = event.target.closest('form[data-search]');
    if (!form) return;
    clearTimeout(quiet);
    quiet = setTimeout(() => search(form), 200);
  });

  // Pages that follow what happens: asked for again every few seconds, while they can be seen, and so seldom that each
  // takes at most a hundredth of a core: a search in a long log is work.
  const followed = document.querySelector('[data-refresh]');
  if (followed) {
    const every = Number(followed.dataset.refresh) * 1000;
    const again = async () => {
      if (!document.hidden) {
        try {
          const url = location.href;
          const page = await load(url);
          // A search may have changed the address meanwhile.
          if (page && url === location.href) replace(page, false);
        } catch { /* The next time. */ }
      }
      setTimeout(again, Math.max(every, 100 * took));
    };
    setTimeout(again, every);
  }

  // Completion of arguments while a prompt is tried: what the upstream suggests stands below the field.
  let completing = null;
  document.addEventListener('input', (event) => {
    const field = event.target.closest('[data-complete]');
    if (!field) return;
    clearTimeout(quiet);
    quiet = setTimeout(async () => {
      completing?.abort();
      completing = new AbortController();
      const body = new URLSearchParams(new FormData(field.form));
      body.set('argument', field.dataset.complete);
      try {
        const response = await fetch(field.form.dataset.completion, {
          method: 'POST', body, signal: completing.signal, credentials: 'same-origin', headers: { Accept: 'application/json' },
        });
        if (!response.ok) return;
        const { values } = await response.json();
        suggest(field, values.filter((value) => value !== field.value).slice(0, 8));
      } catch { /* Nothing to suggest. */ }
    }, 200);
  });
  const suggest = (field, values) => {
    const list = field.parentNode.querySelector('.suggestions');
    list.hidden = values.length === 0;
    list.replaceChildren(...values.map((value) => {
      const button = Object.assign(document.createElement('button'), { type: 'button', textContent: value });
      button.addEventListener('click', () => { field.value = value; field.focus(); suggest(field, []); });
      return button;
    }));
  };

  // The values of a plot where the pointer is, or where the arrow keys have gone.
  const point = (plot, index) => {
    const steps = [...plot.querySelectorAll('.step')];
    const at = Math.min(Math.max(index, 0), steps.length - 1);
    steps.forEach((step, own) => step.classList.toggle('at', own === at));
    plot.closest('figure').querySelector('output').textContent = steps[at].querySelector('title').textContent;
  };
  document.addEventListener('pointerover', (event) => {
    const step = event.target.closest('[data-plot] .step');
    if (step) point(step.closest('[data-plot]'), [...step.parentNode.querySelectorAll('.step')].indexOf(step));
  });
  document.addEventListener('keydown', (event) => {
    const plot = event.target.closest('[data-plot]');
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (!plot || by === undefined) return;
    event.preventDefault();
    const steps = [...plot.querySelectorAll('.step')];
    const now = steps.findIndex((step) => step.classList.contains('at'));
    point(plot, now < 0 ? steps.length - 1 : now + by);
  });

  // A text that is copied.
  document.addEventListener('click', async (event) => {
    const button = event.target.closest('[data-copy]');
    if (!button) return;
    const label = button.textContent;
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = 'Copied';
    } catch {
      button.textContent = 'Not allowed';
    }
    setTimeout(() => { button.textContent = label; }, 1500);
  });

  // Keys that stand as links and buttons, too.
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey) {
      const form = event.key === 'Enter' && event.target.closest('form[data-quick]');
      if (form) form.requestSubmit();
      return;
    }
    if (event.altKey || event.target.closest('input, select, textarea')) return;
    const target = document.querySelector(`[aria-keyshortcuts="${CSS.escape(event.key)}"]`);
    if (!target) return;
    event.preventDefault();
    if (target.matches('input, textarea')) target.focus();
    else target.click();
  });

  // One press of a button is one action.
  document.addEventListener('submit', (event) => {
    if (event.target.method !== 'post') return;
    if (event.target.dataset.sent) event.preventDefault();
    event.target.dataset.sent = 'yes';
  });
  addEventListener('pageshow', () => document.querySelectorAll('form[data-sent]').forEach((form) => delete form.dataset.sent));
})();
