// Sends messages, receives them with a simple consumer, and prints the bodies:
// ENDPOINTS plain GROUP.
import { Producer, SimpleConsumer } from 'rocketmq-client-nodejs';

const [endpoints, , group] = process.argv.slice(2);
const producer = new Producer({ endpoints, namespace: '', topics: ['normal'] });
await producer.startup();
const subscriptions = new Map([['normal', 'node']]);
const consumer = new SimpleConsumer({ endpoints, namespace: '', consumerGroup: group, subscriptions });
await consumer.startup();
for (let number = 0; number < 8; number++) {
  await producer.send({ topic: 'normal', tag: 'node', keys: ['key'], body: Buffer.from(`${group}/node-${number}`) });
}
const received = new Set();
for (const end = Date.now() + 60_000; received.size < 8 && Date.now() < end;) {
  for (const message of await consumer.receive(16, 15_000)) {
    const [run, body] = message.body.toString().split('/');
    if (run === group) received.add(body);
    await consumer.ack(message);
  }
}
console.log(`received ${[...received].sort().join()}`);
process.exit(0);
