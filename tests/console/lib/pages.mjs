// The pages of the console.

/** Each with its address and its heading. */
export const PAGES = [
  { name: 'overview', path: '/', heading: 'Overview' },
  { name: 'prompts', path: '/prompts', heading: 'Prompts' },
  { name: 'prompt', path: '/prompts/library__review-code', heading: 'library__review-code' },
  { name: 'prompt-try', path: '/prompts/library__review-code/try', heading: 'library__review-code' },
  { name: 'prompt-versions', path: '/prompts/library__review-code/versions', heading: 'library__review-code' },
  { name: 'prompt-access', path: '/prompts/library__review-code/access', heading: 'library__review-code' },
  { name: 'prompt-uses', path: '/prompts/library__review-code/uses', heading: 'library__review-code' },
  { name: 'search', path: '/search?q=review', heading: 'Search' },
  { name: 'upstreams', path: '/upstreams', heading: 'Upstreams' },
  { name: 'upstream', path: '/upstreams/child', heading: 'child' },
  { name: 'access', path: '/access', heading: 'Access' },
  { name: 'approvals', path: '/approvals', heading: 'Approvals' },
  { name: 'approval', path: '/approvals/library__review-code', heading: 'library__review-code' },
  { name: 'usage', path: '/usage', heading: 'Usage' },
  { name: 'audit', path: '/audit', heading: 'Audit' },
  { name: 'record', path: '/audit/1', heading: 'Record 1' },
  { name: 'configuration', path: '/configuration', heading: 'Configuration' },
  { name: 'connect', path: '/connect', heading: 'Connect' },
];

export const TROUBLE = { name: 'not-found', path: '/nowhere', heading: 'Not Found', status: 404 };
export const LOGIN = { name: 'login', path: '/login', heading: 'Sign in' };
