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
    private List<Object[]> held; // null: nothing is held back
    long numMessages;

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
        references.forEach((executor, reference) -> {
            if (!executor.equals(except)) {
                reference.send(message);
                numMessages++;
            }
        });
    }

    /** The executor need not hear at once that a task ran elsewhere. */
    void closeLater(String executor, long consumer) {
        if (closed.containsKey(executor)) {
            closed.get(executor).add(consumer);
        }
    }

    void sendClosed() {
        closed.forEach((executor, consumers) -> {
            if (!consumers.isEmpty()) {
                references.get(executor).send(Messages.close(toArray(consumers)));
                numMessages++;
                consumers.clear();
            }
        });
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
