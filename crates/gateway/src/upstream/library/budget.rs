//! The bytes that one template may make while it is rendered. The engine bounds its steps only, and
//! a step may double a text.

use std::sync::LazyLock;

use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};

/// The filter that counts a value and returns it. Sources cannot name it: it is none of
/// [`FILTERS`].
pub(super) const COUNTED: &str = "counted";

/// Bytes that a template may make, for each byte of `max_message`: a text may be taken apart, put
/// together and passed on.
const FACTOR: usize = 4;

/// Bytes that a template may make in any case.
const AT_LEAST: usize = 1 << 20;

/// Bytes that an element of a list takes beside its text.
const ELEMENT: usize = 32;

/// Lists in lists, and mappings: a deeper one would nest the engine as deep.
const DEPTH: usize = 16;

/// The cost of a filter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Cost {
    /// It returns a number, or a value that was there.
    Nothing,
    /// It makes a text.
    Text,
    /// It may make an element out of each byte of a text.
    Elements,
}

/// The bytes that are left.
struct Budget(usize);

/// The filters of a library. Those that make much of little are left out (`indent`, `join`,
/// `replace`, `format`, `batch`, `slice`), and those that apply others.
static FILTERS: LazyLock<Vec<(&str, Cost, Value)>> = LazyLock::new(|| {
    use Cost::{Elements, Nothing, Text};
    vec![
        ("abs", Nothing, Value::from_function(filters::abs)),
        ("bool", Nothing, Value::from_function(filters::bool)),
        ("capitalize", Text, Value::from_function(filters::capitalize)),
        ("count", Nothing, Value::from_function(filters::length)),
        ("d", Nothing, Value::from_function(filters::default)),
        ("default", Nothing, Value::from_function(filters::default)),
        ("dictsort", Elements, Value::from_function(filters::dictsort)),
        ("e", Text, Value::from_function(filters::escape)),
        ("escape", Text, Value::from_function(filters::escape)),
        ("first", Nothing, Value::from_function(filters::first)),
        ("float", Nothing, Value::from_function(filters::float)),
        ("int", Nothing, Value::from_function(filters::int)),
        ("items", Elements, Value::from_function(filters::items)),
        ("last", Nothing, Value::from_function(filters::last)),
        ("length", Nothing, Value::from_function(filters::length)),
        ("lines", Elements, Value::from_function(filters::lines)),
        ("list", Elements, Value::from_function(filters::list)),
        ("lower", Text, Value::from_function(filters::lower)),
        ("max", Nothing, Value::from_function(filters::max)),
        ("min", Nothing, Value::from_function(filters::min)),
        ("reject", Elements, Value::from_function(filters::reject)),
        ("reverse", Elements, Value::from_function(filters::reverse)),
        ("round", Nothing, Value::from_function(filters::round)),
        ("safe", Text, Value::from_function(filters::safe)),
        ("select", Elements, Value::from_function(filters::select)),
        ("sort", Elements, Value::from_function(filters::sort)),
        ("split", Elements, Value::from_function(filters::split)),
        ("string", Text, Value::from_function(filters::string)),
        ("sum", Text, Value::from_function(filters::sum)),
        ("title", Text, Value::from_function(filters::title)),
        ("trim", Text, Value::from_function(filters::trim)),
        ("unique", Elements, Value::from_function(filters::unique)),
        ("upper", Text, Value::from_function(filters::upper)),
    ]
});

/// The functions of the engine that a library has not: a `namespace` may hold itself, and `debug`
/// shows what is internal.
pub(super) const NO_FUNCTIONS: [&str; 3] = ["namespace", "dict", "debug"];

/// Whether a library has a filter.
pub(super) fn is_filter(name: &str) -> bool {
    FILTERS.iter().any(|(known, ..)| *known == name)
}

/// Gives templates the filters of a library, which count what they make. `max_message` is in bytes.
pub(super) fn install(environment: &mut Environment<'static>, max_message: usize) {
    let budget = max_message.saturating_mul(FACTOR).max(AT_LEAST);
    for (name, cost, filter) in FILTERS.iter() {
        environment.add_filter(*name, move |state: &mut State, arguments: Rest<Value>| {
            apply(state, filter, *cost, &arguments, budget)
        });
    }
    environment
        .add_filter(COUNTED, move |state: &mut State, value: Value| count(state, value, budget));
    for name in NO_FUNCTIONS {
        environment.remove_global(name);
    }
}

/// Applies a filter to values that are not too large for it.
fn apply(
    state: &mut State<'_, '_>,
    filter: &Value,
    cost: Cost,
    arguments: &[Value],
    budget: usize,
) -> Result<Value, Error> {
    let mut left = state.get_or_insert_extension(Budget(budget)).0;
    let per_byte = if cost == Cost::Elements { ELEMENT } else { 1 };
    for argument in arguments {
        weigh(argument, per_byte, DEPTH, &mut left)?;
    }
    let made = filter.call(state, arguments)?;
    if cost == Cost::Nothing { Ok(made) } else { count(state, made, budget) }
}

/// Takes the bytes of a value from those that are left.
fn count(state: &mut State<'_, '_>, value: Value, budget: usize) -> Result<Value, Error> {
    let left = &mut state.get_or_insert_extension(Budget(budget)).0;
    weigh(&value, 1, DEPTH, left)?;
    Ok(match value.kind() {
        // One that is computed each time keeps what it is computed from, layer by layer.
        ValueKind::Iterable => value.try_iter()?.collect::<Vec<Value>>().into(),
        _ => value,
    })
}

/// Takes the bytes of a value, and of all in it, from `left`.
fn weigh(value: &Value, per_byte: usize, depth: usize, left: &mut usize) -> Result<(), Error> {
    let too_large = || Error::new(ErrorKind::WriteFailure, "the template makes more than it may");
    // A text in a list is written with escapes.
    let length = |text: &str| match depth {
        DEPTH => text.len(),
        _ => text.len().max(text.escape_debug().count()),
    };
    let text = value.as_str().map_or(0, length).saturating_mul(per_byte);
    *left = left.checked_sub(text.saturating_add(ELEMENT)).ok_or_else(too_large)?;
    let is_map = value.kind() == ValueKind::Map;
    if !is_map && !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return Ok(());
    }
    let depth = depth.checked_sub(1).ok_or_else(too_large)?;
    for element in value.try_iter()? {
        weigh(&element, per_byte, depth, left)?;
        if is_map {
            weigh(&value.get_item(&element)?, per_byte, depth, left)?;
        }
    }
    Ok(())
}
