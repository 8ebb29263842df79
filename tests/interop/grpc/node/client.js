// Uses each feature of the client, and prints what it saw: ENDPOINTS plain|tls GROUP. With more
// arguments: `exchange TOPIC COUNT` sends four messages and prints COUNT that it receives;
// `recover TOPIC` sends and receives while its server restarts; `orphan TOPIC` sends a half message,
// and leaves its transaction open; `check TOPIC` prints what it checks and receives.
import { setTimeout as sleep } from 'node:timers/promises';
import { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } from 'rocketmq-client-nodejs';
import definition from 'rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb.js';

const LIMIT_MS = 60_000;
// A message that a killed proxy had received for a push consumer is invisible for 60 s.
const RECOVERY_MS = 120_000;
const [endpoints, way, run, mode, topic, count] = process.argv.slice(2);
const client = { endpoints, namespace: '', sslEnabled: way === 'tls' };

async function useFeatures() {
  await sendByPriority();
  await sendNormal();
  await sendOrdered();
  const lines = await Promise.all([
    receiveByPriority(), receiveByTag(), receiveByQuery(), push(), pushInOrder(), delayAndRecall(),
    endTransactions(), changeInvisibleDuration(), fail('dead', 'normal'), fail('strict', 'fifo'),
  ]);
  console.log(lines.join('\n'));
}

async function sendByPriority() {
  const producer = await producerOf('priority');
  for (const priority of [1, 3, 2]) await producer.send({ ...message('priority', `${priority}`), priority });
  await producer.shutdown();
}

async function sendNormal() {
  const producer = await producerOf('normal');
  for (let number = 0; number < 8; number++) {
    await producer.send({
      ...message('normal', `normal-${number}`), tag: number % 2 ? 'odd' : 'even', keys: ['key'],
      properties: new Map([['number', `${number}`]]),
    });
  }
  for (const name of ['again', 'dead']) await producer.send({ ...message('normal', name), tag: name });
  await producer.shutdown();
}

async function sendOrdered() {
  const producer = await producerOf('fifo');
  for (let number = 0; number < 8; number++) {
    await producer.send({ ...message('fifo', `fifo-${number}`), tag: 'all', messageGroup: run });
  }
  await producer.send({ ...message('fifo', 'strict'), tag: 'strict', messageGroup: run });
}

/** Returns the priorities of messages in the order of their receipt. */
async function receiveByPriority() {
  const priorities = [];
  const consumer = await simpleConsumer('-priority', 'priority', '*');
  for (const end = Date.now() + LIMIT_MS; priorities.length < 3 && Date.now() < end;) {
    for (const found of await consumer.receive(16, LIMIT_MS)) {
      if (nameOf(found) !== undefined) priorities.push(found.getPriority());
      await consumer.ack(found);
    }
  }
  await consumer.shutdown();
  return `prioritized ${priorities}`;
}

async function receiveByTag() {
  return `tagged ${sorted(await receive('', 'normal', 'even', 4))}`;
}

async function receiveByQuery() {
  const query = new FilterExpression('number > 3', definition.FilterType.SQL);
  return `filtered ${sorted(await receive('-sql', 'normal', query, 4))}`;
}

async function push() {
  return `pushed ${sorted(await consume('-push', 'normal', 'even || odd'))}`;
}

async function pushInOrder() {
  return `ordered ${[...await consume('-ordered', 'fifo', 'all')]}`;
}

async function delayAndRecall() {
  const producer = await producerOf('delay');
  const now = Date.now();
  const at = delay => ({ deliveryTimestamp: new Date(now + delay) });
  const { recallHandle } = await producer.send({ ...message('delay', 'recalled'), ...at(3_000) });
  await producer.send({ ...message('delay', 'delayed'), ...at(4_000) });
  await producer.recallMessage('delay', recallHandle);
  const names = await receive('-delay', 'delay', '*', 1);
  return `delayed ${Date.now() < now + 3_900 ? 'early' : sorted(names)}`;
}

async function endTransactions() {
  const checked = new Set();
  const producer = await producerOf('transaction', committer(checked));
  await (await begin(producer, 'transaction', 'committed')).commit();
  await (await begin(producer, 'transaction', 'rolled-back')).rollback();
  await begin(producer, 'transaction', 'orphaned');
  const ended = await receive('-ended', 'transaction', '*', 2);
  return `received ${sorted(ended)}\nchecked ${sorted(checked)}`;
}

async function begin(producer, to, name) {
  const transaction = producer.beginTransaction();
  await producer.send(message(to, name), transaction);
  return transaction;
}

/** Returns a checker that commits, and adds the names of the messages to a set. */
function committer(checked) {
  return {
    async check(found) {
      note(checked, found);
      return definition.TransactionResolution.COMMIT;
    },
  };
}

/** Makes a message visible long before its time; returns the numbers of its deliveries. */
async function changeInvisibleDuration() {
  const attempts = [];
  const consumer = await simpleConsumer('-changed', 'normal', 'again');
  for (const end = Date.now() + LIMIT_MS; attempts.length < 2 && Date.now() < end;) {
    for (const found of await consumer.receive(16, 300_000)) {
      const isOurs = nameOf(found) !== undefined;
      if (isOurs) attempts.push(found.deliveryAttempt);
      if (isOurs && attempts.length === 1) await consumer.changeInvisibleDuration(found, 1_000);
      else await consumer.ack(found);
    }
  }
  await consumer.shutdown();
  return `again ${attempts}`;
}

/** Fails a message until it is a dead letter; returns the numbers of its deliveries and the letter. */
async function fail(name, from) {
  const attempts = new Set();
  await pushConsumer(`-${name}`, from, name, found => {
    if (nameOf(found) === undefined) return ConsumeResult.SUCCESS;
    attempts.add(found.deliveryAttempt);
    return ConsumeResult.FAILURE;
  });
  for (const end = Date.now() + LIMIT_MS; Date.now() < end;) {
    let consumer;
    try {
      consumer = await simpleConsumer('-letters', `%DLQ%${run}-${name}`, '*');
    } catch { // the first dead letter creates the topic
      await sleep(500);
      continue;
    }
    return `${name} ${sorted(attempts)},${sorted(await receiveFrom(consumer, 1))}`;
  }
  return `${name} ${sorted(attempts)}`;
}

async function exchange() {
  const bodies = new Set();
  const consumer = await simpleConsumer('', topic, '*');
  const producer = await producerOf(topic);
  for (let number = 0; number < 4; number++) await producer.send(message(topic, `node-${number}`));
  for (const end = Date.now() + LIMIT_MS; bodies.size < Number(count) && Date.now() < end;) {
    for (const found of await consumer.receive(16, LIMIT_MS)) {
      bodies.add(found.body.toString());
      await consumer.ack(found);
    }
  }
  console.log(`exchanged ${sorted(bodies)}`);
}

/** Sends until eight sends succeed after a line of input; all that succeeded must arrive. */
async function recover() {
  const [pushed, received, sent] = [new Set(), new Set(), []];
  await pushConsumer('-push', topic, '*', found => {
    note(pushed, found);
    return ConsumeResult.SUCCESS;
  });
  receiveAll(await simpleConsumer('', topic, '*'), received);
  let isBack = false;
  process.stdin.once('data', () => { isBack = true; });
  const producer = await producerOf(topic);
  let isReady = false;
  for (let number = 0, after = 0; after < 8; number++) {
    const counts = isBack;
    try {
      await producer.send(message(topic, `${number}`));
      sent.push(`${number}`);
      if (counts) after++;
    } catch { // the server is away
    }
    if (!isReady && pushed.size && received.size) {
      isReady = true;
      console.log('ready');
    }
    await sleep(100);
  }
  for (const end = Date.now() + RECOVERY_MS; Date.now() < end; await sleep(100)) {
    if (sent.every(name => pushed.has(name) && received.has(name))) {
      console.log('recovered');
      return;
    }
  }
  console.log(`of ${sent.length} came ${pushed.size} and ${received.size}`);
}

async function receiveAll(consumer, received) {
  for (;;) {
    try {
      for (const found of await consumer.receive(16, 15_000)) {
        note(received, found);
        await consumer.ack(found);
      }
    } catch { // the server is away
      await sleep(100);
    }
  }
}

async function orphan() {
  const unknown = definition.TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED;
  await begin(await producerOf(topic, { check: async () => unknown }), topic, 'orphan');
  console.log('sent');
  await new Promise(ended => process.stdin.once('data', ended));
}

async function check() {
  const checked = new Set();
  await producerOf(topic, committer(checked));
  const received = await receive('-heirs', topic, '*', 1);
  console.log(`received ${sorted(received)}\nchecked ${sorted(checked)}`);
}

/** Returns a producer of one topic: with more, this client may miss its settings, and hang. */
async function producerOf(to, checker) {
  const producer = new Producer({ ...client, topics: [to], checker });
  await producer.startup();
  return producer;
}

async function simpleConsumer(suffix, from, filter) {
  const consumer = new SimpleConsumer({
    ...client, consumerGroup: run + suffix, subscriptions: new Map([[from, filter]]), awaitDuration: 5_000,
  });
  await consumer.startup();
  return consumer;
}

async function pushConsumer(suffix, from, tags, listener) {
  const consumer = new PushConsumer({
    ...client, consumerGroup: run + suffix, subscriptions: new Map([[from, tags]]),
    messageListener: { consume: async found => listener(found) },
  });
  await consumer.startup();
}

async function receive(suffix, from, filter, wanted) {
  return receiveFrom(await simpleConsumer(suffix, from, filter), wanted);
}

/** Returns the names of messages that a simple consumer receives and acknowledges. */
async function receiveFrom(consumer, wanted) {
  const names = new Set();
  for (const end = Date.now() + LIMIT_MS; names.size < wanted && Date.now() < end;) {
    for (const found of await consumer.receive(16, LIMIT_MS)) {
      note(names, found);
      await consumer.ack(found);
    }
  }
  await consumer.shutdown();
  return names;
}

/** Returns the names of eight messages in the order in which a push consumer gets them. */
async function consume(suffix, from, tags) {
  const names = new Set();
  await pushConsumer(suffix, from, tags, found => {
    note(names, found);
    return ConsumeResult.SUCCESS;
  });
  for (const end = Date.now() + LIMIT_MS; names.size < 8 && Date.now() < end;) await sleep(50);
  return names;
}

function message(to, name) {
  return { topic: to, body: Buffer.from(`${run}/${name}`) };
}

/** Returns the name in a message's body; undefined if the message is of another run. */
function nameOf(found) {
  const body = found.body.toString();
  return body.startsWith(`${run}/`) ? body.slice(run.length + 1) : undefined;
}

function note(names, found) {
  const name = nameOf(found);
  if (name !== undefined) names.add(name);
}

function sorted(names) {
  return [...names].sort().join();
}

await ({ exchange, recover, orphan, check }[mode] ?? useFeatures)();
process.exit(0); // the shutdown of a push consumer would wait for its receives
