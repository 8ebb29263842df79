import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** A reset by time while the group consumes hands out again what came since, and to both members. */
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

/** While a topic still has its first messages, a new group begins with them, wherever it wants to begin. */
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
