//! The bytes that one template may make and read while it is rendered. The engine bounds only its
//! steps, and one step may double a text, or compare megabytes.

use std::sync::LazyLock;

use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters, tests};

/// The filter appended to a value that an operation makes. The filter counts the value and returns
/// it. Templates cannot use this name: it is not in [`FILTERS`].
pub(super) const MADE: &str = "|made";

/// The filter appended to a value that an operation reads: compares, searches or indexes.
pub(super) const READ: &str = "|read";

/// Bytes that a template may make, and bytes that it may read, for each byte of `max_message`: a
/// text may be taken apart, put together and passed on.
const FACTOR: usize = 4;

/// Bytes that a template may make at least.
const MADE_AT_LEAST: usize = 1 << 20;

/// Bytes that a template may read at least: texts of 16 KiB in each of a thousand steps.
const READ_AT_LEAST: usize = 16 << 20;

/// Overhead of an element of a list in addition to its text, in bytes.
const ELEMENT: usize = 32;

/// The limit of nested lists and mappings: the engine recurses into them.
const DEPTH: usize = 16;

/// The cost of a filter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Cost {
    /// The filter returns a number, or an existing value.
    Nothing,
    /// The filter makes a text.
    Text,
    /// The filter makes a text, and reads its first value for each byte of the second, or, for a
    /// list, for each of its elements.
    Product,
    /// The filter may make an element out of each byte of a text.
    Elements,
}

/// The meaning of a value for its cost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Use {
    Read,
    Made,
    /// Elements may be made of the value.
    Divided,
}

/// The remaining bytes.
struct Budget {
    made: usize,
    read: usize,
}

impl Budget {
    /// Creates the budget; `max_message` is in bytes.
    fn new(max_message: usize) -> Self {
        let most = max_message.saturating_mul(FACTOR);
        Self { made: most.max(MADE_AT_LEAST), read: most.max(READ_AT_LEAST) }
    }

    /// Takes the bytes of values that are read `times` times.
    fn read(&mut self, values: &[Value], times: usize) -> Result<(), Error> {
        let mut left = self.read;
        for value in values {
            weigh(value, Use::Read, DEPTH, &mut left)?;
        }
        let bytes = (self.read - left).saturating_mul(times);
        self.read = self.read.checked_sub(bytes).ok_or_else(|| Use::Read.exceeded())?;
        Ok(())
    }
}

impl Use {
    fn exceeded(self) -> Error {
        match self {
            Self::Read => Error::new(ErrorKind::OutOfFuel, "the template reads more than it may"),
            Self::Made | Self::Divided => {
                Error::new(ErrorKind::WriteFailure, "the template makes more than it may")
            }
        }
    }
}

/// Returns the bytes that a template has made and read.
pub(super) fn spent(state: &State<'_, '_>, max_message: usize) -> usize {
    let whole = Budget::new(max_message);
    let left = state.get_extension::<Budget>();
    left.map_or(0, |left| whole.made - left.made + whole.read - left.read)
}

/// Returns the bytes that the templates of one prompt may make and read together.
pub(super) fn of_prompt(max_message: usize) -> usize {
    let Budget { made, read } = Budget::new(max_message);
    made.saturating_add(read)
}

/// The tests of the engine that read their values.
static TESTS: LazyLock<Vec<(&[&str], Value)>> = LazyLock::new(|| {
    vec![
        (&["eq", "equalto", "=="], Value::from_function(tests::is_eq)),
        (&["ne", "!="], Value::from_function(tests::is_ne)),
        (&["lt", "lessthan", "<"], Value::from_function(tests::is_lt)),
        (&["le", "<="], Value::from_function(tests::is_le)),
        (&["gt", "greaterthan", ">"], Value::from_function(tests::is_gt)),
        (&["ge", ">="], Value::from_function(tests::is_ge)),
        (&["in"], Value::from_function(tests::is_in)),
        (&["iterable"], Value::from_function(tests::is_iterable)),
        (&["startingwith"], Value::from_function(tests::is_startingwith)),
        (&["endingwith"], Value::from_function(tests::is_endingwith)),
        (&["lower"], Value::from_function(tests::is_lower)),
        (&["upper"], Value::from_function(tests::is_upper)),
        (&["sameas"], Value::from_function(tests::is_sameas)),
    ]
});

/// The filters of a library. Filters with a disproportionate result (`indent`, `join`, `replace`,
/// `format`, `batch`, `slice`), and filters that apply other filters, are left out.
static FILTERS: LazyLock<Vec<(&str, Cost, Value)>> = LazyLock::new(|| {
    use Cost::{Elements, Nothing, Product, Text};
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
        ("sum", Product, Value::from_function(filters::sum)),
        ("title", Text, Value::from_function(filters::title)),
        ("trim", Product, Value::from_function(filters::trim)),
        ("unique", Elements, Value::from_function(filters::unique)),
        ("upper", Text, Value::from_function(filters::upper)),
    ]
});

/// The functions of the engine that a library does not offer: a `namespace` may hold itself, and
/// `debug` shows internals.
pub(super) const NO_FUNCTIONS: [&str; 3] = ["namespace", "dict", "debug"];

/// Whether a library offers a filter.
pub(super) fn is_filter(name: &str) -> bool {
    FILTERS.iter().any(|(known, ..)| *known == name)
}

/// Adds the filters and tests of a library, which count the bytes that they make and read.
/// `max_message` is in bytes.
pub(super) fn install(environment: &mut Environment<'static>, max_message: usize) {
    for (name, cost, filter) in FILTERS.iter() {
        environment.add_filter(*name, move |state: &mut State, arguments: Rest<Value>| {
            apply(state, filter, *cost, &arguments, max_message)
        });
    }
    for (names, test) in TESTS.iter() {
        for name in *names {
            environment.add_test(*name, move |state: &mut State, arguments: Rest<Value>| {
                state.get_or_insert_extension(Budget::new(max_message)).read(&arguments, 1)?;
                test.call(state, &arguments)
            });
        }
    }
    environment.add_filter(&MADE[1..], move |state: &mut State, value: Value| {
        count(state, value, max_message)
    });
    environment.add_filter(&READ[1..], move |state: &mut State, value: Value| {
        let budget = state.get_or_insert_extension(Budget::new(max_message));
        budget.read(std::slice::from_ref(&value), 1).map(|()| value)
    });
    for name in NO_FUNCTIONS {
        environment.remove_global(name);
    }
}

/// Applies a filter, if the budget suffices for its arguments.
fn apply(
    state: &mut State<'_, '_>,
    filter: &Value,
    cost: Cost,
    arguments: &[Value],
    max_message: usize,
) -> Result<Value, Error> {
    let budget = state.get_or_insert_extension(Budget::new(max_message));
    let mut left = budget.made;
    let used = if cost == Cost::Elements { Use::Divided } else { Use::Made };
    for argument in arguments {
        weigh(argument, used, DEPTH, &mut left)?;
    }
    let times = match arguments {
        [first, other, ..] if cost == Cost::Product => match first.as_str() {
            Some(_) => other.as_str().map_or(1, str::len),
            None => first.len().unwrap_or(usize::MAX),
        },
        _ => 1,
    };
    budget.read(arguments, times.max(1))?;
    let made = filter.call(state, arguments)?;
    if cost == Cost::Nothing { Ok(made) } else { count(state, made, max_message) }
}

/// Takes the bytes of a made value from the budget.
fn count(state: &mut State<'_, '_>, value: Value, max_message: usize) -> Result<Value, Error> {
    let left = &mut state.get_or_insert_extension(Budget::new(max_message)).made;
    weigh(&value, Use::Made, DEPTH, left)?;
    Ok(match value.kind() {
        // Evaluates a lazy value, which would keep the values behind it, layer by layer.
        ValueKind::Iterable => value.try_iter()?.collect::<Vec<Value>>().into(),
        _ => value,
    })
}

/// Takes the bytes of a value, and of all its elements, from `left`.
fn weigh(value: &Value, used: Use, depth: usize, left: &mut usize) -> Result<(), Error> {
    let length = |text: &str| match used {
        Use::Read => text.len(),
        _ if depth == DEPTH => text.len(),
        // A text in a list is written with escapes.
        Use::Made | Use::Divided => text.len().max(text.escape_debug().count()),
    };
    let per_byte = if used == Use::Divided { ELEMENT } else { 1 };
    let text = value.as_str().map_or(0, length).saturating_mul(per_byte);
    *left = left.checked_sub(text.saturating_add(ELEMENT)).ok_or_else(|| used.exceeded())?;
    let is_map = value.kind() == ValueKind::Map;
    if !is_map && !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return Ok(());
    }
    let depth = depth.checked_sub(1).ok_or_else(|| used.exceeded())?;
    for element in value.try_iter()? {
        weigh(&element, used, depth, left)?;
        if is_map {
            weigh(&value.get_item(&element)?, used, depth, left)?;
        }
    }
    Ok(())
}
