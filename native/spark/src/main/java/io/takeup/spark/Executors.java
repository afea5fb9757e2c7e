package io.takeup.spark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.rpc.RpcEndpointRef;

/** The executors that have said hello, and what waits to be sent to them. */
final class Executors {
    private final Map<String, RpcEndpointRef> references = new HashMap<>();
    private final Map<String, List<Long>> closed = new HashMap<>();
    private final List<Long> closedForAll = new ArrayList<>();
    private final boolean areTold; // else nobody there would act on it
    private List<Object[]> held; // null: nothing is held back
    long numMessages;

    Executors(boolean areTold) {
        this.areTold = areTold;
    }

    void add(String executor, RpcEndpointRef reference) {
        references.put(executor, reference);
        closed.put(executor, new ArrayList<>());
    }

    void remove(String executor) {
        references.remove(executor);
        closed.remove(executor);
    }

    int size() {
        return Math.max(1, references.size());
    }

    /** What is said to everybody from now on leaves as one message, with {@link #release}. */
    void hold() {
        held = new ArrayList<>();
        sendClosedForAll();
    }

    void release() {
        List<Object[]> messages = held;
        held = null;
        if (!messages.isEmpty()) {
            send(Messages.all(messages), null);
        }
    }

    /** To everybody but one, who knows already. */
    void send(Object[] message, String except) {
        if (held != null && except == null) {
            held.add(message);
            return;
        }
        if (areTold) {
            Object[] packed = Messages.packed(message);
            references.forEach((executor, reference) -> {
                if (!executor.equals(except)) {
                    reference.send(packed);
                    numMessages++;
                }
            });
        }
    }

    /** The executor need not hear at once that a task ran elsewhere. */
    void closeLater(String executor, long consumer) {
        if (areTold && closed.containsKey(executor)) {
            closed.get(executor).add(consumer);
        }
    }

    /** Nobody need hear it at once, but everybody hears it in the end. */
    void closeLater(long[] consumers) {
        for (long consumer : consumers) {
            closedForAll.add(consumer);
        }
    }

    void sendClosed() {
        sendClosedForAll();
        closed.forEach((executor, consumers) -> {
            if (!consumers.isEmpty()) {
                references.get(executor).send(Messages.packed(Messages.close(toArray(consumers))));
                numMessages++;
                consumers.clear();
            }
        });
    }

    private void sendClosedForAll() {
        if (!closedForAll.isEmpty()) {
            send(Messages.close(toArray(closedForAll)), null);
            closedForAll.clear();
        }
    }

    Map<String, RpcEndpointRef> all() {
        return new HashMap<>(references);
    }

    static long[] toArray(Iterable<Long> values) {
        List<Long> list = new ArrayList<>();
        values.forEach(list::add);
        return list.stream().mapToLong(Long::longValue).toArray();
    }
}
