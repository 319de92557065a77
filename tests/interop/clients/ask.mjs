// "Answers what a prompt asks": what every TypeScript client does with an elicitation.
//
// main(label, connect): argv URL PROMPT [LEAD [mode]]. `connect(url, mode, answer)` connects, declares
// that its user can be asked and has `answer(params)` called at each question; without `answer` it
// declares nothing. It returns
//   get(name) -> result
//   stray() -> number                       questions that came although it cannot be asked
//   errorCode(thrown) -> number | undefined (JSON-RPC code of an error that the server answered)
//   close()
// PROMPT must ask for QUESTION, with LEAD before it, and use the answer; and whoever cannot be asked
// must get an error.
import { must } from './check.mjs';

const PATIENCE = 30_000; // less than that of the SDKs
const QUESTION = 'What context should the prompt use?';
const TEXT = 'Prompt with context: blue';
const MISSING_REQUIRED_CLIENT_CAPABILITY = -32021;
const INVALID_PARAMS = -32602;

async function answered(connect, prompt, lead) {
  const asked = [];
  const peer = await connect((params) => {
    asked.push(params);
    return { action: 'accept', content: { context: 'blue' } };
  });
  const { messages } = await peer.get(prompt);
  must(asked.length === 1, `asked ${asked.length} times, want once`);
  const [{ message, requestedSchema }] = asked;
  must(message.startsWith(lead) && message.endsWith(QUESTION), `asked ${JSON.stringify(message)}, want ${JSON.stringify(`${lead}…${QUESTION}`)}`);
  must(requestedSchema?.properties?.context?.type === 'string', `schema: ${JSON.stringify(requestedSchema)}`);
  const got = JSON.stringify(messages.map(({ content }) => content.text));
  must(got === JSON.stringify([TEXT]), `answered with ${got}, want ["${TEXT}"]`);
  await peer.close();
}

async function refused(connect, prompt, mode) {
  const peer = await connect();
  let code = 'no error';
  try {
    await peer.get(prompt);
  } catch (error) {
    code = peer.errorCode(error) ?? `a non-protocol error (${error})`;
  }
  must(peer.stray() === 0, 'asked who cannot be asked');
  // A legacy upstream has no code of its own for it.
  const right = mode === 'modern' ? [MISSING_REQUIRED_CLIENT_CAPABILITY, INVALID_PARAMS].includes(code) : Number.isInteger(code);
  must(right, `who cannot be asked got ${code}`);
  await peer.close();
  return code;
}

export async function main(label, connect) {
  const [url, prompt, lead = '', mode] = process.argv.slice(2);
  const who = `ask ${label}${mode ? `-${mode}` : ''}`;
  const fail = (message) => {
    console.error(`FAIL ${who}: ${message}`);
    process.exit(1);
  };
  if (!url || !prompt) fail('usage: URL PROMPT [LEAD [mode]]');

  const connectTo = (answer) => connect(new URL(url), mode, answer);
  setTimeout(() => fail(`not done within ${PATIENCE / 1000} s`), PATIENCE);
  try {
    await answered(connectTo, prompt, lead);
    const code = await refused(connectTo, prompt, mode);
    console.log(`ok ${who} refused=${code}`);
    process.exit(0);
  } catch (error) {
    fail(error?.message ?? error);
  }
}
