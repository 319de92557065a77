//! Scans templates before they are parsed, and bounds their operations, length and depth. The
//! parser recurses for each operator, filter and branch, so a file of a few kilobytes could
//! overflow the stack; and the engine counts steps, not bytes, so a template of one line could take
//! all memory.
//!
//! An operation that makes a value from others, or reads them, gets a filter behind each value,
//! which counts the bytes of the value ([`super::budget`]). Statements and operators that cannot be
//! counted are refused.

use minijinja::Environment;
use minijinja::machinery::{Token, tokenize};

use super::budget::{MADE, READ, is_filter};
use super::template::{Slip, has_filter, mistake};

/// Most tokens of one template. The parser takes a few hundred bytes for each.
const MAX_TOKENS: usize = 20_000;

/// Most tokens of one `{{ … }}` or `{% … %}`: its parser nests with each operator and filter.
const MAX_TAG: usize = 500;

/// Most `{% elif %}` of one template: each is nested in the one before.
const MAX_ELIFS: usize = 200;

/// Words that stand between values, and are never values.
const BETWEEN: [&str; 6] = ["and", "else", "if", "in", "is", "or"];

/// Returns the template with filters that count the bytes of all made and read values.
pub(super) fn counted(source: &str) -> Result<String, Slip> {
    let mut scan = Scan::new(source);
    for token in tokenize(source, false, Default::default()) {
        let (token, span) =
            token.map_err(|error| Slip { offset: scan.end, message: mistake(&error) })?;
        let offset = span.start_offset as usize;
        scan.begin = offset;
        scan.take(&token).map_err(|message| Slip { offset, message })?;
        scan.end = span.end_offset as usize;
    }
    Ok(scan.finish())
}

/// The syntactic position in a tag.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Place {
    /// The name of a statement.
    Statement,
    /// The beginning of a value.
    Value,
    /// The end of a value, or its continuation.
    Operand,
    /// The name of an attribute.
    Attribute,
    /// The name of a filter.
    Filter,
    /// The name of a test.
    Test,
    /// The argument of a test without parentheses.
    Tested,
}

/// The meaning of a pair of brackets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Brackets {
    /// The tag itself.
    Tag,
    Arguments,
    /// A value in parentheses; a tuple if there is a comma.
    Group,
    /// A list or a mapping.
    Literal,
    /// An index, or a slice if there is a colon.
    Index,
}

#[derive(Debug)]
struct Level {
    brackets: Brackets,
    /// Whether the brackets make a value.
    is_making: bool,
    /// The filter to append at the end of the present value.
    filter: Option<&'static str>,
    /// The filter to append to each argument in the brackets.
    each: Option<&'static str>,
    /// Begin of the operand; `None` for the argument of a test without parentheses.
    operand: Option<usize>,
}

impl Level {
    fn new(brackets: Brackets) -> Self {
        Self {
            brackets,
            is_making: brackets == Brackets::Literal,
            filter: None,
            each: None,
            operand: None,
        }
    }
}

struct Scan<'a> {
    source: &'a str,
    /// The offsets in the source, and the texts to insert there.
    inserts: Vec<(usize, &'static str)>,
    /// The beginning of the token.
    begin: usize,
    /// The ends of the last token and of the value before the last dot.
    end: usize,
    dotted: usize,
    /// Whether the present call is `loop.changed`, which compares its arguments.
    is_comparing: bool,
    tokens: usize,
    /// Tokens of the present tag.
    tag: usize,
    elifs: usize,
    place: Place,
    levels: Vec<Level>,
    /// Whether the tag is `{% set %}`, and whether its `=` was read.
    set: Option<bool>,
    /// Whether the present names are assigned: before `=`, or before `in` of a loop.
    is_target: bool,
}

impl<'a> Scan<'a> {
    fn new(source: &'a str) -> Self {
        Self {
            source,
            inserts: Vec::new(),
            begin: 0,
            end: 0,
            dotted: 0,
            is_comparing: false,
            tokens: 0,
            tag: 0,
            elifs: 0,
            place: Place::Value,
            levels: Vec::new(),
            set: None,
            is_target: false,
        }
    }

    fn take(&mut self, token: &Token<'_>) -> Result<(), String> {
        self.tokens += 1;
        self.tag += 1;
        if self.tokens > MAX_TOKENS {
            return Err(format!("the template has more than {MAX_TOKENS} parts"));
        }
        match token {
            Token::TemplateData(_) => {}
            Token::VariableStart => self.begin_tag(Place::Value),
            Token::BlockStart => self.begin_tag(Place::Statement),
            Token::VariableEnd | Token::BlockEnd => {
                self.end_value();
                if self.set == Some(false) {
                    return Err("a `{% set %}` without `=` is not available in a library".into());
                }
            }
            _ if self.tag > MAX_TAG => {
                return Err(format!(
                    "a `{{{{ … }}}}` or `{{% … %}}` has more than {MAX_TAG} parts"
                ));
            }
            token => return self.inside(token),
        }
        Ok(())
    }

    fn begin_tag(&mut self, place: Place) {
        (self.tag, self.set, self.place, self.is_target) = (0, None, place, false);
        self.levels = vec![Level::new(Brackets::Tag)];
    }

    /// Takes a token between the delimiters of a tag.
    fn inside(&mut self, token: &Token<'_>) -> Result<(), String> {
        let mut place = self.place;
        if matches!(place, Place::Value | Place::Tested) {
            self.level().operand = (place == Place::Value).then_some(self.begin);
        }
        if place == Place::Tested {
            // A list as the argument of a test makes a value.
            let begins_list = matches!(token, Token::BracketOpen | Token::BraceOpen);
            place = if begins_list { Place::Value } else { Place::Operand };
            self.place = place;
        }
        match (place, token) {
            (_, Token::Mul | Token::Pow) => return Err(unavailable("`*`")),
            (Place::Statement, Token::Ident(name)) => return self.statement(name),
            (Place::Filter, Token::Ident(name)) if !is_filter(name) => {
                return Err(refused_filter(name));
            }
            (Place::Test, Token::Ident("not")) => {}
            (Place::Test, _) => self.place = Place::Tested,
            (Place::Attribute, Token::Int(_) | Token::Int128(_)) => {
                self.place = Place::Operand;
                return self.read_operand(self.dotted);
            }
            (Place::Attribute | Place::Filter, token) => {
                self.is_comparing = matches!(token, Token::Ident("changed"));
                self.place = Place::Operand;
            }
            (Place::Value, Token::Ident("not") | Token::Minus) => {}
            // The second word of `not in`.
            (Place::Value, Token::Ident("in")) if self.source[..self.end].ends_with("not") => {}
            (Place::Value, Token::Ident(word)) if BETWEEN.contains(word) => {
                return Err(format!("`{word}` stands where a value should"));
            }
            (Place::Operand, Token::Ident(word)) => return self.word(word),
            (_, Token::Tilde | Token::Plus) => {
                self.operate(MADE);
            }
            (_, Token::Eq | Token::Ne | Token::Lt | Token::Lte | Token::Gt | Token::Gte) => {
                self.operate(READ)
            }
            (_, Token::BracketOpen) => return self.open(Brackets::Literal, Brackets::Index),
            (_, Token::BraceOpen) => return self.open(Brackets::Literal, Brackets::Literal),
            (_, Token::ParenOpen) => return self.open(Brackets::Group, Brackets::Arguments),
            (_, Token::BracketClose | Token::BraceClose | Token::ParenClose) => {
                return self.close();
            }
            (Place::Operand, Token::Dot) => {
                (self.place, self.dotted) = (Place::Attribute, self.end);
            }
            (Place::Operand, Token::Pipe) => self.place = Place::Filter,
            (_, Token::Comma | Token::Colon | Token::Assign) => return self.separate(token),
            (
                _,
                Token::Ident(_)
                | Token::Str(_)
                | Token::String(_)
                | Token::Int(_)
                | Token::Int128(_)
                | Token::Float(_),
            ) => self.place = Place::Operand,
            // Any other operator.
            _ => self.begin_value(),
        }
        Ok(())
    }

    fn statement(&mut self, name: &str) -> Result<(), String> {
        self.place = match name {
            "if" | "elif" | "for" | "with" | "set" => Place::Value,
            "else" | "endif" | "endfor" | "endwith" => Place::Operand,
            _ => return Err(unavailable(&format!("`{{% {name} %}}`"))),
        };
        self.set = (name == "set").then_some(false);
        self.is_target = matches!(name, "for" | "set" | "with");
        self.elifs += usize::from(name == "elif");
        if self.elifs > MAX_ELIFS {
            return Err(format!("the template has more than {MAX_ELIFS} `{{% elif %}}`"));
        }
        Ok(())
    }

    /// Takes a word behind a value.
    fn word(&mut self, word: &str) -> Result<(), String> {
        match word {
            // The result of a test is its outcome, which needs no filter.
            "is" => (self.place, self.level().filter) = (Place::Test, None),
            "recursive" => return Err(unavailable("`recursive`")),
            "not" => self.operate(READ),
            "in" if !self.is_target => self.operate(READ),
            word if BETWEEN.contains(&word) => {
                self.begin_value();
                self.is_target = false;
            }
            // The argument of a test.
            _ => {}
        }
        Ok(())
    }

    /// Takes a token between two values.
    fn separate(&mut self, token: &Token<'_>) -> Result<(), String> {
        if self.level().brackets == Brackets::Arguments && matches!(token, Token::Assign) {
            // The identifier was the name of an argument.
            self.level().filter = None;
        }
        self.begin_value();
        self.level().filter = self.level().each;
        let is_set = self.set;
        let level = self.level();
        match (level.brackets, token) {
            (Brackets::Group, Token::Comma) | (Brackets::Index, Token::Colon) => {
                level.is_making = true;
            }
            (Brackets::Tag, Token::Comma) if is_set == Some(true) => {
                return Err("several values of a `{% set %}` need brackets around them".into());
            }
            (Brackets::Tag, Token::Assign) => {
                (self.set, self.is_target) = (is_set.map(|_| true), false);
            }
            _ => {}
        }
        Ok(())
    }

    fn open(&mut self, at_beginning: Brackets, behind_value: Brackets) -> Result<(), String> {
        let is_behind = self.place == Place::Operand;
        let mut level = Level::new(if is_behind { behind_value } else { at_beginning });
        match level.brackets {
            Brackets::Index => self.read_operand(self.end)?,
            Brackets::Arguments if std::mem::take(&mut self.is_comparing) => {
                (level.filter, level.each) = (Some(READ), Some(READ));
            }
            _ => {}
        }
        self.levels.push(level);
        self.place = Place::Value;
        Ok(())
    }

    fn close(&mut self) -> Result<(), String> {
        self.end_value();
        let closed = self.levels.pop().filter(|_| !self.levels.is_empty());
        let closed = closed.ok_or("a bracket is closed that was not opened")?;
        let is_value = !self.is_target;
        if closed.is_making && is_value {
            self.level().filter = Some(MADE);
        }
        self.place = Place::Operand;
        Ok(())
    }

    fn begin_value(&mut self) {
        self.end_value();
        self.place = Place::Value;
    }

    /// Takes an operator. The filter counts the values on both sides of it.
    fn operate(&mut self, filter: &'static str) {
        if self.level().filter != Some(filter) {
            self.end_value();
        }
        self.inserts.push((self.end, filter));
        self.level().filter = Some(filter);
        self.place = Place::Value;
    }

    /// Counts the operand of an index.
    fn read_operand(&mut self, end: usize) -> Result<(), String> {
        let wrong = "an index in the value of a test needs parentheses around the value";
        let begin = self.level().operand.ok_or(wrong)?;
        self.inserts.extend([(begin, "("), (end, READ), (end, ")")]);
        Ok(())
    }

    /// Ends a value: appends the filter that counts it.
    fn end_value(&mut self) {
        let filter = self.level().filter.take();
        if let Some(filter) = filter.filter(|_| self.place != Place::Value) {
            self.inserts.push((self.end, filter));
        }
    }

    fn level(&mut self) -> &mut Level {
        if self.levels.is_empty() {
            self.levels.push(Level::new(Brackets::Tag));
        }
        let last = self.levels.len() - 1;
        &mut self.levels[last]
    }

    fn finish(mut self) -> String {
        self.inserts.sort_by_key(|(at, _)| *at);
        let mut out = String::with_capacity(self.source.len() + 8 * self.inserts.len());
        let mut copied = 0;
        for (at, insert) in self.inserts {
            out.push_str(&self.source[copied..at]);
            out.push_str(insert);
            copied = at;
        }
        out.push_str(&self.source[copied..]);
        out
    }
}

/// Returns the error for an unknown filter; a filter of the engine is reported as not available.
fn refused_filter(name: &str) -> String {
    if has_filter(&Environment::new(), name) {
        return unavailable(&format!("the filter `{name}`"));
    }
    format!("there is no filter `{name}`")
}

fn unavailable(name: &str) -> String {
    format!("{name} is not available in a library")
}
