package io.takeup.spark;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;

/**
 * Messages as bytes. Java's own way to read a message of many small arrays takes an executor as long as to act on it.
 *
 * <p>Each part is a letter for its type, a length, and the values.
 */
final class Wire {
    private static final int HEAD_BYTES = 1 + Integer.BYTES;

    private Wire() {}

    static byte[] packed(Object[] message) {
        ByteBuffer buffer = ordered(ByteBuffer.allocate(numBytes(message)));
        write(message, buffer);
        return buffer.array();
    }

    static Object[] unpacked(byte[] bytes) {
        return (Object[]) read(ordered(ByteBuffer.wrap(bytes)));
    }

    private static ByteBuffer ordered(ByteBuffer buffer) {
        return buffer.order(ByteOrder.LITTLE_ENDIAN);
    }

    private static int numBytes(Object part) {
        int count = HEAD_BYTES;
        if (part instanceof Object[]) {
            for (Object inner : (Object[]) part) {
                count += numBytes(inner);
            }
            return count;
        }
        if (part instanceof String) {
            return count + ((String) part).length();
        }
        if (part instanceof int[]) {
            return count + Integer.BYTES * ((int[]) part).length;
        }
        return count + Long.BYTES * (part instanceof long[] ? ((long[]) part).length : ((double[]) part).length);
    }

    private static void write(Object part, ByteBuffer buffer) {
        if (part instanceof Object[]) {
            Object[] inner = (Object[]) part;
            buffer.put((byte) (part instanceof long[][] ? 'L' : 'O')).putInt(inner.length);
            for (Object one : inner) {
                write(one, buffer);
            }
        } else if (part instanceof long[]) {
            long[] values = (long[]) part;
            buffer.put((byte) 'l').putInt(values.length).asLongBuffer().put(values);
            buffer.position(buffer.position() + Long.BYTES * values.length);
        } else if (part instanceof double[]) {
            double[] values = (double[]) part;
            buffer.put((byte) 'd').putInt(values.length).asDoubleBuffer().put(values);
            buffer.position(buffer.position() + Double.BYTES * values.length);
        } else if (part instanceof int[]) {
            int[] values = (int[]) part;
            buffer.put((byte) 'i').putInt(values.length).asIntBuffer().put(values);
            buffer.position(buffer.position() + Integer.BYTES * values.length);
        } else {
            byte[] letters = ((String) part).getBytes(StandardCharsets.US_ASCII);
            buffer.put((byte) 's').putInt(letters.length).put(letters);
        }
    }

    private static Object read(ByteBuffer buffer) {
        byte type = buffer.get();
        int length = buffer.getInt();
        switch (type) {
            case 'O':
            case 'L':
                Object[] parts = type == 'L' ? new long[length][] : new Object[length];
                for (int index = 0; index < length; index++) {
                    parts[index] = read(buffer);
                }
                return parts;
            case 'l':
                long[] longs = new long[length];
                buffer.asLongBuffer().get(longs);
                buffer.position(buffer.position() + Long.BYTES * length);
                return longs;
            case 'd':
                double[] doubles = new double[length];
                buffer.asDoubleBuffer().get(doubles);
                buffer.position(buffer.position() + Double.BYTES * length);
                return doubles;
            case 'i':
                int[] ints = new int[length];
                buffer.asIntBuffer().get(ints);
                buffer.position(buffer.position() + Integer.BYTES * length);
                return ints;
            case 's':
                byte[] letters = new byte[length];
                buffer.get(letters);
                return new String(letters, StandardCharsets.US_ASCII);
            default:
                throw new IllegalArgumentException("no part of a message begins with " + type);
        }
    }
}
