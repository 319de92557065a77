//! For tests: checks the JSON Schema against every text that the configuration tests parse.

use std::path::Path;
use std::sync::LazyLock;

use jsonschema::Validator;

use super::Config;
use super::error::ConfigError;
use super::reader::raw::ENV_PREFIX;

static SCHEMA: LazyLock<Validator> =
    LazyLock::new(|| jsonschema::validator_for(&Config::schema()).expect("a schema"));

/// Mistakes in one key alone, which a schema can express.
const EXPRESSIBLE: [&str; 10] = [
    "must hold at least one value",
    "unknown key",
    "must be true or false",
    "must be a whole number",
    "must be a list of strings",
    "must be a table",
    "must be an array of tables",
    "must be one of \"",
    "must be a string",
    "must be a number",
];

/// Parses like [`Config::parse`]; asserts that the schema accepts valid text, and rejects the
/// mistakes that it can express.
pub(crate) fn parse(
    file: &str,
    text: &str,
    base: &Path,
    env: &[(String, String)],
) -> Result<Config, ConfigError> {
    let parsed = Config::parse(file, text, base, env);
    let has_overrides = env.iter().any(|(name, _)| name.starts_with(ENV_PREFIX));
    let Some(document) = as_json(text).filter(|_| !has_overrides) else {
        return parsed;
    };
    let problems = || SCHEMA.iter_errors(&document).map(|e| format!("{}: {e}", e.instance_path()));
    match &parsed {
        Ok(_) => {
            let problems: Vec<_> = problems().collect();
            assert!(problems.is_empty(), "{problems:#?}\n{text}");
        }
        Err(error) => {
            let is_expressible =
                |message: &String| EXPRESSIBLE.iter().any(|kind| message.starts_with(kind));
            if error.mistakes.iter().any(|mistake| is_expressible(&mistake.message)) {
                assert!(!SCHEMA.is_valid(&document), "{error}\n{text}");
            }
        }
    }
    parsed
}

fn as_json(text: &str) -> Option<serde_json::Value> {
    let source = config::File::from_str(text, config::FileFormat::Toml);
    let tree = config::Config::builder().add_source(source).build().ok()?;
    tree.try_deserialize().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_accepts_every_example() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
        let blocks = |path: &str| {
            let text = read(path);
            let blocks =
                text.split("```toml\n").skip(1).filter_map(|block| block.split("```").next());
            blocks.map(str::to_owned).collect::<Vec<_>>()
        };
        let init = read("src/cli/operate/init/gateway.toml");
        let uncommented = init.lines().map(|line| line.strip_prefix("#: ").unwrap_or(line));
        let uncommented = uncommented.collect::<Vec<_>>().join("\n");
        let mut examples = vec![
            read("gateway.toml"),
            read("examples/compose/config/gateway.toml"),
            init.clone(),
            uncommented,
            blocks("docs/configuration.md").concat(),
        ];
        for path in [
            "README.md",
            "docs/access.md",
            "docs/exposure.md",
            "docs/hosts.md",
            "docs/first-hour.md",
            "docs/proxies.md",
        ] {
            examples.extend(blocks(path));
        }
        for example in &examples {
            let document = as_json(example).unwrap_or_else(|| panic!("{example}"));
            let problems: Vec<_> = SCHEMA
                .iter_errors(&document)
                .map(|e| format!("{}: {e}", e.instance_path()))
                .collect();
            assert!(problems.is_empty(), "{problems:#?}\n{example}");
        }
        assert!(examples.len() >= 10, "the examples were found");
    }
}
