import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.AckStatus;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.consumer.PopStatus;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.constant.ConsumeInitMode;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ChangeInvisibleTimeRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ExtraInfoUtil;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;

/** Features that pop, acknowledge and hide messages by single requests, each of which waits for its answer. */
abstract class PopCalls extends Feature {
    private static final int ANSWER_MS = 30_000;
    private MQClientAPIImpl calls;
    private String address;
    private String broker;
    String topic;
    String group;

    /** Has `producer` make the calls of the group on the topic. */
    void begin(DefaultMQProducer producer) throws Exception {
        topic = topic("T");
        group = group("popping");
        calls = producer.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl();
        address = brokerOf(admin());
        broker = producer.fetchPublishMessageQueues(topic).get(0).getBrokerName();
    }

    CompletableFuture<PopResult> popLater(int most, long invisibleMs, long holdMs, String attempt) throws Exception {
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(topic);
        header.setQueueId(attempt == null ? -1 : 0);
        header.setMaxMsgNums(most);
        header.setInvisibleTime(invisibleMs);
        header.setPollTime(holdMs);
        header.setBornTime(System.currentTimeMillis());
        header.setInitMode(ConsumeInitMode.MIN);
        header.setExpType("TAG");
        header.setExp("*");
        header.setOrder(attempt != null);
        header.setAttemptId(attempt);
        header.setBrokerName(broker);
        CompletableFuture<PopResult> answer = new CompletableFuture<>();
        calls.popMessageAsync(broker, address, header, holdMs + ANSWER_MS, new PopCallback() {
            @Override public void onSuccess(PopResult result) {
                answer.complete(result);
            }

            @Override public void onException(Throwable error) {
                answer.completeExceptionally(error);
            }
        });
        return answer;
    }

    static PopResult answered(CompletableFuture<PopResult> answer) throws Exception {
        return answer.get(PATIENCE_SECONDS, TimeUnit.SECONDS);
    }

    /** Returns the messages of a pop that finds some within `holdMs`, or none; by `attempt` in order. */
    List<MessageExt> pop(int most, long invisibleMs, long holdMs, String attempt) throws Exception {
        PopResult result = answered(popLater(most, invisibleMs, holdMs, attempt));
        return result.getPopStatus() == PopStatus.FOUND ? result.getMsgFoundList() : List.of();
    }

    List<MessageExt> popUntil(int count, long invisibleMs) throws Exception {
        List<MessageExt> popped = new ArrayList<>();
        await(() -> {
            popped.addAll(pop(32, invisibleMs, 1000, null));
            return popped.size() >= count;
        }, () -> count + " messages, came " + bodies(popped));
        return popped;
    }

    static List<String> bodies(List<MessageExt> messages) {
        return messages.stream().map(Feature::text).toList();
    }

    static String handle(MessageExt message) {
        return message.getProperty(MessageConst.PROPERTY_POP_CK);
    }

    AckResult ack(String handle) throws Exception {
        String[] words = ExtraInfoUtil.split(handle);
        AckMessageRequestHeader header = new AckMessageRequestHeader();
        header.setTopic(ExtraInfoUtil.getRealTopic(words, topic, group));
        header.setConsumerGroup(group);
        header.setQueueId(ExtraInfoUtil.getQueueId(words));
        header.setOffset(ExtraInfoUtil.getQueueOffset(words));
        header.setExtraInfo(handle);
        header.setBrokerName(broker);
        return settled(callback -> calls.ackMessageAsync(address, ANSWER_MS, callback, header));
    }

    AckResult ackAll(List<MessageExt> messages) throws Exception {
        List<String> handles = messages.stream().map(PopCalls::handle).toList();
        return settled(callback -> calls.batchAckMessageAsync(address, ANSWER_MS, callback, topic, group, handles));
    }

    AckResult hide(String handle, long invisibleMs) throws Exception {
        String[] words = ExtraInfoUtil.split(handle);
        ChangeInvisibleTimeRequestHeader header = new ChangeInvisibleTimeRequestHeader();
        header.setTopic(ExtraInfoUtil.getRealTopic(words, topic, group));
        header.setConsumerGroup(group);
        header.setQueueId(ExtraInfoUtil.getQueueId(words));
        header.setOffset(ExtraInfoUtil.getQueueOffset(words));
        header.setExtraInfo(handle);
        header.setInvisibleTime(invisibleMs);
        header.setBrokerName(broker);
        return settled(callback -> calls.changeInvisibleTimeAsync(broker, address, header, ANSWER_MS, callback));
    }

    static void ok(AckResult result) {
        equal(AckStatus.OK, result.getStatus(), "status of an acknowledgement");
    }

    private interface Call {
        void start(AckCallback callback) throws Exception;
    }

    private static AckResult settled(Call call) throws Exception {
        CompletableFuture<AckResult> answer = new CompletableFuture<>();
        call.start(new AckCallback() {
            @Override public void onSuccess(AckResult result) {
                answer.complete(result);
            }

            @Override public void onException(Throwable error) {
                answer.completeExceptionally(error);
            }
        });
        return answer.get(PATIENCE_SECONDS, TimeUnit.SECONDS);
    }
}

/** Messages are acknowledged alone and in batches, hidden for longer, and come again when their time is over. */
final class PopHandles extends PopCalls {
    @Override void run() throws Exception {
        DefaultMQProducer producer = producer();
        begin(producer);
        send(producer, topic, "t", 0, 10);
        long began = System.currentTimeMillis();
        List<MessageExt> popped = popUntil(10, 6000);
        equal(List.of("0", "1", "2", "3", "4", "5", "6", "7", "8", "9"), bodies(popped), "messages of one queue");
        check(popped.stream().allMatch(message -> message.getReconsumeTimes() == 0), "come for the first time");
        for (MessageExt message : popped.subList(0, 3)) {
            ok(ack(handle(message)));
        }
        ok(ackAll(popped.subList(3, 7)));
        AckResult hidden = hide(handle(popped.get(7)), 20_000);
        ok(hidden);
        check(hidden.getPopTime() >= began, "pop time " + hidden.getPopTime());
        String forged = handle(popped.get(8)).replaceAll(" [0-9]+$", " 1000");
        equal(AckStatus.NO_EXIST, ack(forged).getStatus(), "status of an offset that is not there");
        List<MessageExt> again = popUntil(2, 15_000);
        long lateMs = System.currentTimeMillis() - began - 6000;
        check(lateMs > -500, "visible too early: " + lateMs + " ms");
        fact("late_ms", lateMs);
        equal(List.of("8", "9"), bodies(again).stream().sorted().toList(), "messages that came again");
        for (MessageExt message : again) {
            equal(1, message.getReconsumeTimes(), "deliveries before");
            equal(topic, message.getTopic(), "topic");
            equal("key-" + text(message), message.getKeys(), "keys");
            equal(group, message.getProperty("ORIGIN_GROUP"), "its group");
            check(Long.parseLong(message.getProperty("1ST_POP_TIME")) >= began - 500, "when it was popped first");
        }
        ok(ackAll(again));
        ok(ack(hidden.getExtraInfo()));
        ok(ack(handle(popped.get(7)))); // a handle of before: no harm
        Thread.sleep(Math.max(0, began + 28_000 - System.currentTimeMillis()));
        equal(List.of(), bodies(pop(32, 5000, 0, null)), "messages after all are acknowledged");
    }
}

/** A held pop is answered by a message that arrives, or when its time is over. */
final class PopHold extends PopCalls {
    @Override void run() throws Exception {
        DefaultMQProducer producer = producer();
        begin(producer);
        long began = System.currentTimeMillis();
        equal(PopStatus.POLLING_NOT_FOUND, answered(popLater(8, 20_000, 2000, null)).getPopStatus(), "found nothing");
        long heldMs = System.currentTimeMillis() - began;
        check(heldMs > 1500 && heldMs < 10_000, "held for " + heldMs + " ms of 2 s");
        CompletableFuture<PopResult> held = popLater(8, 20_000, 40_000, null);
        Thread.sleep(1000);
        check(!held.isDone(), "it is held");
        long sent = System.currentTimeMillis();
        send(producer, topic, "t", 0, 1);
        List<MessageExt> found = answered(held).getMsgFoundList();
        long wokenMs = System.currentTimeMillis() - sent;
        check(wokenMs < 10_000, "woken after " + wokenMs + " ms");
        fact("woken_ms", wokenMs);
        equal(List.of("0"), bodies(found), "messages");
        ok(ack(handle(found.get(0))));
    }
}

/** Pops in order: one batch at a time, except for the same attempt; what is not acknowledged comes again, counted. */
final class PopInOrder extends PopCalls {
    @Override void run() throws Exception {
        DefaultMQProducer producer = producer();
        begin(producer);
        send(producer, topic, "t", 0, 4);
        List<MessageExt> first = pop(2, 30_000, 5000, "first");
        equal(List.of("0", "1"), bodies(first), "messages");
        equal(List.of(), bodies(pop(2, 30_000, 0, "second")), "messages while the queue is blocked");
        List<MessageExt> same = pop(2, 30_000, 0, "first");
        equal(List.of("0", "1"), bodies(same), "messages of the same attempt");
        equal(List.of(0, 0), counts(same), "deliveries before, of the same attempt");
        ok(ack(handle(same.get(0))));
        equal(List.of(), bodies(pop(2, 30_000, 0, "second")), "messages while one is not acknowledged");
        CompletableFuture<PopResult> held = popLater(2, 4000, 30_000, "second");
        Thread.sleep(500);
        check(!held.isDone(), "it is held");
        ok(ack(handle(same.get(1))));
        List<MessageExt> next = answered(held).getMsgFoundList();
        equal(List.of("2", "3"), bodies(next), "messages that the acknowledgement makes free");
        equal(List.of(0, 0), counts(next), "deliveries before");
        List<MessageExt> again = pop(2, 30_000, 30_000, "third");
        equal(List.of("2", "3"), bodies(again), "messages whose time is over");
        equal(List.of(1, 1), counts(again), "deliveries before");
        ok(ack(handle(again.get(0))));
        long began = System.currentTimeMillis();
        AckResult hidden = hide(handle(again.get(1)), 3000);
        ok(hidden);
        equal(List.of(), bodies(pop(2, 30_000, 0, "fourth")), "messages while the last is hidden");
        List<MessageExt> last = pop(2, 30_000, 30_000, "fourth");
        equal(List.of("3"), bodies(last), "messages that were hidden");
        check(System.currentTimeMillis() - began > 2500, "after " + (System.currentTimeMillis() - began) + " ms");
        equal(List.of(2), counts(last), "deliveries before");
        ok(ack(handle(last.get(0))));
        equal(List.of(), bodies(pop(2, 30_000, 0, "fifth")), "messages after all are acknowledged");
        send(producer, topic, "t", 4, 5);
        equal(List.of("4"), bodies(pop(2, 30_000, 5000, "sixth")), "messages of later");
    }

    private static List<Integer> counts(List<MessageExt> messages) {
        return messages.stream().map(MessageExt::getReconsumeTimes).toList();
    }
}
