// The Node client `ali-ons`, driven by the interop tests. One command per process; each printed line
// is one fact, as words separated by blanks, as InteropClient.java prints them.
//
//   produce NAMESRV TOPIC COUNT     sends COUNT messages, one after the other
//   consume NAMESRV GROUP TOPIC TAGS EXPECTED FAILURES SECONDS
//                                   push-consumes; each message's first FAILURES deliveries ask for a retry
//   broadcast NAMESRV GROUP TOPIC EXPECTED SECONDS   every member gets every message
'use strict';

const { Consumer, Message, Producer } = require('ali-ons');

const silent = { debug() {}, info() {}, warn() {}, error() {}, log() {} };
const httpclient = { request() { throw new Error('no name server by HTTP here'); } };

function options(nameSrv, more) {
  return { httpclient, logger: silent, nameSrv, clientIP: '127.0.0.1', ...more };
}

async function produce(nameSrv, topic, count) {
  const producer = new Producer(options(nameSrv, { producerGroup: 'interop-node-producer' }));
  await producer.ready();
  for (let number = 0; number < count; number++) {
    // Every eighth body is long enough for the client to compress it.
    const body = `node-${number}` + (number % 8 === 0 ? '-' + 'x'.repeat(5000) : '');
    const message = new Message(topic, number % 2 === 0 ? 'even' : 'odd', body);
    message.keys = [ `key-${number}` ];
    message.properties.number = String(number);
    message.properties.language = 'Nöde ☕';
    const result = await producer.send(message);
    console.log('sent', result.sendStatus, result.msgId, result.messageQueue.queueId, result.queueOffset);
  }
  await producer.close();
}

async function consume(nameSrv, group, topic, tags, isBroadcast, expected, failures, seconds) {
  const consumer = new Consumer(options(nameSrv, {
    consumerGroup: group, isBroadcast, consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET', rebalanceInterval: 1000,
    pollNameServerInteval: 1000, // sic; finds the retry topic of a new group sooner
  }));
  consumer.on('error', error => console.log('error', error.message.replaceAll('\n', ' ')));
  const deliveries = new Map();
  let left = expected;
  const done = new Promise(resolve => {
    setTimeout(() => resolve(false), seconds * 1000);
    consumer.subscribe(topic, tags, async message => {
      const delivery = (deliveries.get(message.keys) || 0) + 1;
      deliveries.set(message.keys, delivery);
      console.log('got', message.keys, delivery, message.reconsumeTimes, message.tags, message.topic,
        message.body.length, message.properties.number);
      if (delivery <= failures) {
        throw new Error('not yet'); // of Consumer.ACTION_RETRY this client forgets all but the first
      }
      if (--left === 0) {
        resolve(true);
      }
    });
  });
  await consumer.ready();
  console.log('done', await done);
  await new Promise(resolve => setTimeout(resolve, 500)); // what listeners just said is noted
  await consumer.close();
}

const [ command, ...words ] = process.argv.slice(2);
const commands = {
  produce: () => produce(words[0], words[1], Number(words[2])),
  consume: () => consume(words[0], words[1], words[2], words[3], false, ...words.slice(4).map(Number)),
  broadcast: () => consume(words[0], words[1], words[2], '*', true, ...words.slice(3, 4).map(Number), 0,
    Number(words[4])),
};
commands[command]().then(() => process.exit(0), error => {
  console.error(error);
  process.exit(1);
});
