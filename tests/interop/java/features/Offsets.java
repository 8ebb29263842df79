import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** A reset by time during consumption redelivers later messages, to both members. */
final class ResetOffset extends Feature {
    @Override void run() throws Exception {
        String topic = topic("T");
        DefaultMQProducer producer = producer();
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer first = member(topic, inbox);
        DefaultMQPushConsumer second = member(topic, inbox);
        await(() -> owned(first, topic).size() == 2 && owned(second, topic).size() == 2, () -> "two queues each");
        send(producer, topic, "t", 0, 20);
        awaitExactly(inbox, 20);
        Thread.sleep(1200); // Java's search by time is exact to the message, but clocks are not
        long since = System.currentTimeMillis();
        Thread.sleep(200);
        send(producer, topic, "t", 20, 30);
        awaitExactly(inbox, 30);
        Thread.sleep(1500); // its offsets are saved
        MQClientInstance instance = first.getDefaultMQPushConsumerImpl().getmQClientFactory();
        String broker = instance.findBrokerAddressInPublish(owned(first, topic).iterator().next().getBrokerName());
        Map<MessageQueue, Long> offsets = instance.getMQClientAPIImpl()
            .invokeBrokerToResetOffset(broker, topic, group("reset"), since, true, 15_000);
        equal(4, offsets.size(), "queues that were reset: " + offsets);
        await(() -> inbox.size() >= 40, () -> "10 messages again, came " + (inbox.size() - 30));
        Thread.sleep(500);
        equal(40, inbox.size(), "messages");
        Map<String, Integer> counts = new TreeMap<>();
        inbox.bodies().forEach(body -> counts.merge(body, 1, Integer::sum));
        counts.forEach((body, count) -> equal(Integer.parseInt(body) < 20 ? 1 : 2, count, "deliveries of " + body));
        send(producer, topic, "t", 30, 40);
        awaitExactly(inbox, 50);
    }

    private DefaultMQPushConsumer member(String topic, Inbox inbox) throws Exception {
        DefaultMQPushConsumer consumer = consumer("reset");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(taking(inbox));
        return start(consumer);
    }
}

/** A reset during orderly consumption redelivers all later messages in order. */
final class ResetOrderly extends Ordered {
    @Override void run() throws Exception {
        String topic = topic("T");
        DefaultMQProducer producer = producer();
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = consumer("reset");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            inbox.add(messages);
            return ConsumeOrderlyStatus.SUCCESS;
        });
        start(consumer);
        sendKeyed(producer, topic, 0, 5);
        awaitExactly(inbox, KEYS * 5);
        Thread.sleep(1500); // its offsets are saved
        DefaultMQAdminExt admin = admin();
        var offsets = admin.resetOffsetByTimestamp(topic, group("reset"), 0, true);
        equal(4, offsets.size(), "queues that were reset: " + offsets);
        offsets.forEach((queue, offset) -> equal(0L, offset, "offset of " + queue));
        await(() -> inbox.size() >= KEYS * 10, () -> "30 messages again, came " + (inbox.size() - KEYS * 5));
        sendKeyed(producer, topic, 5, 7);
        awaitExactly(inbox, KEYS * 12);
        List<Integer> expected = upTo(5);
        expected.addAll(upTo(7));
        byKey(inbox.bodies()).forEach((key, found) -> equal(expected, found, "order of key " + key));
    }
}

/** A reset of a broadcasting group applies to a member, although members store their own offsets. */
final class ResetBroadcast extends Feature {
    @Override void run() throws Exception {
        String topic = topic("T"); // of one queue
        DefaultMQProducer producer = producer();
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = consumer("everyone");
        setModel(consumer, "BROADCASTING");
        consumer.setInstanceName("reset" + prefix + System.nanoTime());
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(taking(inbox));
        start(consumer);
        send(producer, topic, "t", 0, 6);
        awaitExactly(inbox, 6);
        var offsets = admin().resetOffsetByTimestamp(topic, group("everyone"), 0, true);
        equal(1, offsets.size(), "queues that were reset: " + offsets);
        awaitExactly(inbox, 12);
        send(producer, topic, "t", 6, 8);
        awaitExactly(inbox, 14);
        equal(8, inbox.distinct().size(), "different messages");
    }
}

/** While a topic still has its first messages, a new group starts there, whatever its setting. */
final class StartFrom extends Feature {
    @Override void run() throws Exception {
        String topic = topic("T");
        DefaultMQProducer producer = producer();
        send(producer, topic, "t", 0, 8);
        String since = UtilAll.timeMillisToHumanString3(System.currentTimeMillis());
        send(producer, topic, "t", 8, 12);
        Inbox first = member(topic, "first", ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, since);
        Inbox timed = member(topic, "timed", ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, since);
        Inbox last = member(topic, "last", ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, since);
        awaitExactly(first, 12);
        awaitExactly(timed, 12);
        awaitExactly(last, 12);
        for (MessageExt message : first.all()) {
            check(message.getQueueOffset() >= 0 && message.getStoreSize() > 0, "its place");
            check(message.getBornTimestamp() <= message.getStoreTimestamp() + 1000, "its times");
        }
    }

    private Inbox member(String topic, String group, ConsumeFromWhere where, String since) throws Exception {
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = consumer(group);
        consumer.setConsumeFromWhere(where);
        consumer.setConsumeTimestamp(since);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(taking(inbox));
        start(consumer);
        return inbox;
    }
}
