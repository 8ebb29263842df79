import java.util.concurrent.CopyOnWriteArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** An administrator has one consumer consume a stored message, and receives the result of its listener. */
final class ConsumeDirectly extends Feature {
    @Override void run() throws Exception {
        String topic = topic("T");
        DefaultMQProducer producer = producer();
        DefaultMQAdminExt admin = admin();
        DefaultMQPushConsumer consumer = concurrent(topic);
        DefaultMQPushConsumer orderly = orderly(topic);
        Map<String, String> concurrently = Map.of("fine", "CR_SUCCESS", "later", "CR_LATER", "null",
            "CR_RETURN_NULL", "raises", "CR_THROW_EXCEPTION");
        Map<String, String> inOrder = Map.of("fine", "CR_SUCCESS", "later", "CR_LATER", "null",
            "CR_RETURN_NULL", "raises", "CR_THROW_EXCEPTION", "commit", "CR_COMMIT", "rollback", "CR_ROLLBACK");
        SendResult sent = null;
        for (String body : inOrder.keySet()) {
            sent = producer.send(message(topic, "t", body));
            ok(sent);
            if (concurrently.containsKey(body)) {
                String said = say(admin, consumer, topic, sent, false, body);
                equal(concurrently.get(body), said, "of " + body);
            }
            equal(inOrder.get(body), say(admin, orderly, topic, sent, true, body), "in order of " + body);
        }
        try {
            admin.consumeMessageDirectly(consumer.getConsumerGroup(), "nobody", topic, sent.getMsgId());
            throw new AssertionError("handed to nobody");
        } catch (MQClientException | MQBrokerException expected) {
            check(expected.getMessage().contains("nobody"), "why: " + expected);
        }
    }

    private static String say(DefaultMQAdminExt admin, DefaultMQPushConsumer consumer, String topic, SendResult sent,
            boolean isOrder, String body) throws Exception {
        var result = admin.consumeMessageDirectly(
            consumer.getConsumerGroup(), clientId(consumer), topic, sent.getOffsetMsgId());
        equal(isOrder, result.isOrder(), "whether it is in order");
        if (body.equals("raises")) {
            check(("" + result.getRemark()).contains("told to"), "remark: " + result.getRemark());
        }
        check(result.getSpentTimeMills() >= 0, "time");
        return result.getConsumeResult().name();
    }

    /** Its own subscription matches no message, so pulls deliver nothing. */
    private DefaultMQPushConsumer concurrent(String topic) throws Exception {
        DefaultMQPushConsumer consumer = consumer("taker");
        consumer.subscribe(topic, "none");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            switch (text(messages.get(0))) {
                case "fine": return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                case "later": return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                case "raises": throw new IllegalStateException("told to");
                default: return null;
            }
        });
        return start(consumer);
    }

    @SuppressWarnings("deprecation")
    private DefaultMQPushConsumer orderly(String topic) throws Exception {
        DefaultMQPushConsumer consumer = consumer("orderly");
        consumer.subscribe(topic, "none");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            switch (text(messages.get(0))) {
                case "fine": return ConsumeOrderlyStatus.SUCCESS;
                case "later": return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                case "commit": return ConsumeOrderlyStatus.COMMIT;
                case "rollback": return ConsumeOrderlyStatus.ROLLBACK;
                case "raises": throw new IllegalStateException("told to");
                default: return null;
            }
        });
        return start(consumer);
    }
}

/** A message whose listener exceeds the timeout is sent back and redelivered; its queue continues. */
final class ConsumeTimeout extends Feature {
    @Override void run() throws Exception {
        String topic = topic("T"); // of one queue
        DefaultMQProducer producer = producer();
        Inbox inbox = new Inbox();
        List<Integer> hanging = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer consumer = consumer("taker");
        consumer.subscribe(topic, "*");
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(4);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            if (text(message).equals("0") && message.getReconsumeTimes() == 0) {
                hanging.add(message.getQueueId());
                sleep(PATIENCE_SECONDS);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
            inbox.add(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        start(consumer);
        send(producer, topic, "t", 0, 4);
        await(() -> inbox.size() == 3 && hanging.size() == 1, () -> "3 messages, came " + inbox.bodies());
        Thread.sleep(50);
        consumer.setConsumeTimeout(0); // of minutes, which is what it counts in
        consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().values()
            .forEach(queue -> queue.cleanExpiredMsg(consumer)); // each such while it would do so itself
        awaitExactly(inbox, 4);
        MessageExt again = inbox.all().get(3);
        equal("0", text(again), "what came again");
        equal(1, again.getReconsumeTimes(), "its tries");
        equal(Set.of("0", "1", "2", "3"), inbox.distinct(), "messages");
        DefaultMQAdminExt admin = admin();
        await(() -> admin.examineConsumeStats(consumer.getConsumerGroup(), topic).computeTotalDiff() == 0,
            () -> "the queue's offset passes it");
    }

    private static void sleep(int seconds) {
        try {
            Thread.sleep(seconds * 1000L);
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }
}
