package io.takeup.spark;

import java.io.BufferedInputStream;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.util.Arrays;
import java.util.zip.Deflater;
import java.util.zip.DeflaterOutputStream;
import java.util.zip.InflaterInputStream;

/**
 * Messages as bytes. Java's own way to read a message of many small arrays takes an executor as long as to act on it.
 *
 * <p>Each part is a letter for its type, a length, and the values. Of numbers the difference to the one before is
 * written, in as few bytes as it needs; of lists, to the one at the same place of the list before. Tasks and blocks are
 * numbered in order, so most differences are equal, and deflating leaves little of them.
 */
final class Wire {
    private static final int WORTH_DEFLATING = 1024;
    private static final int PLAIN = 0;
    private static final int DEFLATED = 1;

    private Wire() {}

    static byte[] packed(Object[] message) {
        try {
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            bytes.write(PLAIN);
            write(message, new DataOutputStream(bytes));
            return bytes.size() < WORTH_DEFLATING ? bytes.toByteArray() : deflated(bytes.toByteArray());
        } catch (IOException error) {
            throw new UncheckedIOException(error); // arrays do not fail
        }
    }

    static Object[] unpacked(byte[] bytes) {
        ByteArrayInputStream body = new ByteArrayInputStream(bytes, 1, bytes.length - 1);
        InputStream plain = bytes[0] == DEFLATED ? new BufferedInputStream(new InflaterInputStream(body), 1 << 16) : body;
        try (DataInputStream stream = new DataInputStream(plain)) {
            return (Object[]) read(stream);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static byte[] deflated(byte[] plain) throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream(plain.length / 4);
        bytes.write(DEFLATED);
        Deflater deflater = new Deflater(Deflater.BEST_SPEED);
        try (DeflaterOutputStream stream = new DeflaterOutputStream(bytes, deflater, 1 << 16)) {
            stream.write(plain, 1, plain.length - 1);
        } finally {
            deflater.end();
        }
        return bytes.toByteArray();
    }

    private static void write(Object part, DataOutputStream stream) throws IOException {
        if (part instanceof long[][]) {
            writeLists((long[][]) part, stream);
        } else if (part instanceof Object[]) {
            stream.writeByte('O');
            stream.writeInt(((Object[]) part).length);
            for (Object one : (Object[]) part) {
                write(one, stream);
            }
        } else if (part instanceof String) {
            stream.writeByte('s');
            stream.writeUTF((String) part);
        } else {
            stream.writeByte(part instanceof long[] ? 'l' : part instanceof double[] ? 'd' : 'i');
            writeNumbers(numbers(part), stream);
        }
    }

    private static long[] numbers(Object part) {
        return part instanceof long[] ? (long[]) part
                : part instanceof int[] ? Arrays.stream((int[]) part).asLongStream().toArray()
                : Arrays.stream((double[]) part).mapToLong(Double::doubleToRawLongBits).toArray();
    }

    private static void writeNumbers(long[] numbers, DataOutputStream stream) throws IOException {
        stream.writeInt(numbers.length);
        long before = 0;
        for (long number : numbers) {
            writeDifference(number - before, stream);
            before = number;
        }
    }

    private static void writeLists(long[][] lists, DataOutputStream stream) throws IOException {
        stream.writeByte('L');
        stream.writeInt(lists.length);
        long[] before = {};
        for (long[] list : lists) {
            writeDifference(list.length, stream);
            for (int place = 0; place < list.length; place++) {
                writeDifference(list[place] - (place < before.length ? before[place] : 0), stream);
            }
            before = list;
        }
    }

    /** Seven bits to a byte, least significant first; the sign is in the lowest bit. */
    private static void writeDifference(long difference, DataOutputStream stream) throws IOException {
        long rest = difference << 1 ^ difference >> 63;
        while ((rest & ~0x7FL) != 0) {
            stream.writeByte((int) (rest & 0x7F | 0x80));
            rest >>>= 7;
        }
        stream.writeByte((int) rest);
    }

    private static long readDifference(DataInputStream stream) throws IOException {
        long whole = 0;
        for (int shift = 0; ; shift += 7) {
            int next = stream.readUnsignedByte();
            whole |= (long) (next & 0x7F) << shift;
            if (next < 0x80) {
                return whole >>> 1 ^ -(whole & 1);
            }
        }
    }

    private static Object read(DataInputStream stream) throws IOException {
        int type = stream.readUnsignedByte();
        switch (type) {
            case 'O':
                Object[] parts = new Object[stream.readInt()];
                for (int index = 0; index < parts.length; index++) {
                    parts[index] = read(stream);
                }
                return parts;
            case 'L':
                return readLists(stream);
            case 'l':
                return readNumbers(stream);
            case 'd':
                return Arrays.stream(readNumbers(stream)).mapToDouble(Double::longBitsToDouble).toArray();
            case 'i':
                return Arrays.stream(readNumbers(stream)).mapToInt(number -> (int) number).toArray();
            case 's':
                return stream.readUTF();
            default:
                throw new IllegalArgumentException("no part of a message begins with " + type);
        }
    }

    private static long[] readNumbers(DataInputStream stream) throws IOException {
        long[] numbers = new long[stream.readInt()];
        long before = 0;
        for (int index = 0; index < numbers.length; index++) {
            before += readDifference(stream);
            numbers[index] = before;
        }
        return numbers;
    }

    private static long[][] readLists(DataInputStream stream) throws IOException {
        long[][] lists = new long[stream.readInt()][];
        long[] before = {};
        for (int index = 0; index < lists.length; index++) {
            long[] list = new long[(int) readDifference(stream)];
            for (int place = 0; place < list.length; place++) {
                list[place] = readDifference(stream) + (place < before.length ? before[place] : 0);
            }
            lists[index] = before = list;
        }
        return lists;
    }
}
