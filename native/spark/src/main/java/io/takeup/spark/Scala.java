package io.takeup.spark;

import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.List;
import scala.collection.Iterator;

/** Spark from Java, without naming a Scala collection in a signature: those differ between Scala 2.12 and 2.13. */
final class Scala {
    private Scala() {}

    /** The items of a Scala collection that a method without arguments, or with one number, returns. */
    static List<Object> items(Object owner, String method, int... argument) throws ReflectiveOperationException {
        Object collection = argument.length == 0
                ? publicMethod(owner, method).invoke(owner)
                : publicMethod(owner, method, int.class).invoke(owner, argument[0]);
        return items(collection);
    }

    private static List<Object> items(Object collection) throws ReflectiveOperationException {
        Iterator<?> iterator = (Iterator<?>) publicMethod(collection, "iterator").invoke(collection);
        List<Object> items = new ArrayList<>();
        while (iterator.hasNext()) {
            items.add(iterator.next());
        }
        return items;
    }

    /** What a Scala map that a method returns holds under this number, or null. */
    static Object lookUp(Object owner, String method, int key) throws ReflectiveOperationException {
        Object map = publicMethod(owner, method).invoke(owner);
        Object option = publicMethod(map, "get", Object.class).invoke(map, key);
        return ((scala.Option<?>) option).isDefined() ? ((scala.Option<?>) option).get() : null;
    }

    static Object field(Object owner, Class<?> type, String name) throws ReflectiveOperationException {
        return accessible(type, name).get(owner);
    }

    static void setField(Object owner, Class<?> type, String name, Object value) throws ReflectiveOperationException {
        accessible(type, name).set(owner, value);
    }

    private static Field accessible(Class<?> type, String name) throws ReflectiveOperationException {
        Field field = type.getDeclaredField(name);
        field.setAccessible(true);
        return field;
    }

    /** Found on the nearest public class: the collection itself may be of a private one. */
    private static Method publicMethod(Object owner, String name, Class<?>... arguments) throws NoSuchMethodException {
        Method method = owner.getClass().getMethod(name, arguments);
        method.setAccessible(true);
        return method;
    }
}
