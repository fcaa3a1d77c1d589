//! Policies and settings for a bundle: TOML that means the same, without comments, with other addresses.
//!
//! Values of variables are put in place of `${name}` first, because a variable may be a part of an address.
//! A redacted policy has as many flows as the policy: prefixes are replaced by prefixes that are nested and
//! adjacent as before (`address_map.rs`). The ends of a range keep their places in the longest prefix that
//! has both, so an overlap of a range with other prefixes may differ.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use toml::{Table, Value};

use super::redactor::{REMOVED, Redactor};
use crate::policy_file::Inputs;

/// A file of a bundle, and what was left out of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RedactedFile {
    /// The path in the bundle.
    pub(super) name: String,
    pub(super) text: String,
    /// The parts that were left out, for the manifest.
    pub(super) left_out: Option<String>,
}

/// The folder of the policy in a bundle, and the name of its main file there.
pub(super) const POLICY_FOLDER: &str = "policy";
pub(super) const MAIN_FILE: &str = "policy.toml";

/// The policy with all of its files; `None`: its text was not kept, as it is too long. `redactor`: what is
/// replaced.
pub(super) fn of_inputs(inputs: &Inputs, redactor: &Redactor) -> Option<Vec<RedactedFile>> {
    let main = inputs.text.as_deref()?;
    let files: Vec<(&String, &str)> =
        inputs.files.iter().filter_map(|(name, file)| Some((name, file.text.as_deref()?))).collect();
    let is_policy = |text: &str| text.parse::<Table>().is_ok_and(|table| table.contains_key("version"));
    let texts = || std::iter::once(main).chain(files.iter().map(|(_, text)| *text));
    let variables = variables(texts().filter(|text| is_policy(text)), &inputs.variables);
    let name = |name: &str| format!("{POLICY_FOLDER}/{name}");
    let mut redacted = vec![policy(name(MAIN_FILE), main, &variables, redactor)];
    for (file, text) in files {
        let name = name(&inside(&redactor.text(file)));
        redacted.push(match is_policy(text) {
            true => policy(name, text, &variables, redactor),
            false => RedactedFile { name, text: set_file(text, redactor), left_out: None },
        });
    }
    Some(redacted)
}

/// The values of all variables: given ones before those of including files, which come first.
fn variables<'t>(
    texts: impl Iterator<Item = &'t str>,
    given: &BTreeMap<String, String>,
) -> BTreeMap<String, Value> {
    let given = given.iter().map(|(name, text)| (name.clone(), Value::String(text.clone())));
    let mut all: BTreeMap<String, Value> = given.collect();
    for text in texts {
        let table = text.parse::<Table>().unwrap_or_default();
        for (name, value) in table.get("variables").and_then(Value::as_table).into_iter().flatten() {
            all.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }
    all
}

/// A policy file with variables put in and everything replaced.
fn policy(
    name: String,
    text: &str,
    variables: &BTreeMap<String, Value>,
    redactor: &Redactor,
) -> RedactedFile {
    if !redactor.replaces_addresses() {
        return RedactedFile { name, text: redactor.text(text), left_out: None };
    }
    let Ok(mut table) = text.parse::<Table>() else {
        let left_out = Some("it is no TOML, so its comments cannot be found".to_owned());
        return RedactedFile { name, text: String::new(), left_out };
    };
    table.remove("variables");
    let frames = remove_frames(&mut table);
    let substituted = substituted(Value::Table(table), variables);
    let mut value = redactor.policy(substituted);
    move_files_inside(&mut value);
    let left_out = (frames > 0).then(|| format!("{frames} tests with frames in hexadecimal"));
    RedactedFile { name, text: written(&value), left_out }
}

/// Removes the tests of frames, whose addresses are not text. Returns their number.
fn remove_frames(policy: &mut Table) -> usize {
    let Some(Value::Array(tests)) = policy.get_mut("tests") else { return 0 };
    let before = tests.len();
    tests.retain(|test| test.get("frame").is_none());
    let removed = before - tests.len();
    if tests.is_empty() {
        policy.remove("tests");
    }
    removed
}

/// The value with the values of variables in place of `${name}`.
fn substituted(value: Value, variables: &BTreeMap<String, Value>) -> Value {
    match value {
        Value::String(text) => of_text(&text, variables),
        Value::Array(values) => {
            Value::Array(values.into_iter().map(|value| substituted(value, variables)).collect())
        }
        Value::Table(entries) => Value::Table(
            entries.into_iter().map(|(key, value)| (key, substituted(value, variables))).collect(),
        ),
        other => other,
    }
}

/// A text that is one variable becomes its value, whatever its type.
fn of_text(text: &str, variables: &BTreeMap<String, Value>) -> Value {
    let alone = text.trim().strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
    if let Some(value) = alone.and_then(|name| variables.get(name)) {
        return match value {
            // A given value is text that may stand for another type.
            Value::String(text) => typed(text),
            value => value.clone(),
        };
    }
    let (mut whole, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("${") {
        let Some((name, behind)) = after.split_once('}') else { break };
        whole += before;
        match variables.get(name) {
            Some(Value::String(value)) => whole += value,
            Some(value) => whole += &value.to_string(),
            None => whole += &format!("${{{name}}}"),
        }
        rest = behind;
    }
    Value::String(whole + rest)
}

/// The TOML value that a given text is, if it is one other than a string; else the string.
fn typed(text: &str) -> Value {
    let value = format!("value = {text}").parse::<Table>().ok().and_then(|mut table| table.remove("value"));
    value.filter(|value| !value.is_datetime()).unwrap_or_else(|| Value::String(text.to_owned()))
}

/// Names of files in `includes` and of sets, as they are in the bundle.
fn move_files_inside(policy: &mut Value) {
    let renamed = |value: &mut Value| {
        if let Value::String(name) = value {
            *name = inside(name);
        }
    };
    if let Some(Value::Array(includes)) = policy.get_mut("includes") {
        includes.iter_mut().for_each(renamed);
    }
    for (_, set) in policy.get_mut("sets").and_then(Value::as_table_mut).into_iter().flatten() {
        set.get_mut("file").into_iter().for_each(renamed);
    }
}

/// A path that stays below its folder: `..` and the root become folders.
fn inside(path: &str) -> String {
    let part = |component: Component<'_>| match component {
        Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
        Component::ParentDir => Some("up".to_owned()),
        Component::RootDir => Some("root".to_owned()),
        Component::CurDir | Component::Prefix(_) => None,
    };
    Path::new(path).components().filter_map(part).collect::<Vec<_>>().join("/")
}

/// A set file: a value a line, `#` begins a comment.
fn set_file(text: &str, redactor: &Redactor) -> String {
    if !redactor.replaces_addresses() {
        return redactor.text(text);
    }
    let values = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let values: Vec<&str> = values.filter(|value| !value.is_empty()).collect();
    redactor.text(&(values.join("\n") + "\n"))
}

/// A settings file: values of the policy's variables, which may be parts of addresses, are removed.
pub(super) fn settings(text: &str, redactor: &Redactor) -> Result<String, String> {
    if !redactor.replaces_addresses() {
        return Ok(redactor.text(text));
    }
    let table =
        text.parse::<Table>().map_err(|_| "it is no TOML, so its secrets cannot be found".to_owned())?;
    let mut value = Value::Table(table);
    let variables = value.get_mut("policy").and_then(|policy| policy.get_mut("variables"));
    for (_, value) in variables.and_then(Value::as_table_mut).into_iter().flatten() {
        *value = Value::String(REMOVED.to_owned());
    }
    Ok(written(&redactor.settings(value)))
}

fn written(value: &Value) -> String {
    toml::to_string_pretty(value).unwrap_or_else(|error| format!("# not written: {error}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy_file::InputFile;
    use crate::report_bundle::address_map::AddressMap;

    fn inputs(text: &str, files: &[(&str, &str)], variables: &[(&str, &str)]) -> Inputs {
        let file = |(name, text): &(&str, &str)| {
            ((*name).to_owned(), InputFile { text: Some((*text).to_owned()), ..InputFile::default() })
        };
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Inputs {
            text: Some(text.to_owned()),
            files: files.iter().map(file).collect(),
            variables: variables.collect(),
            ..Inputs::default()
        }
    }

    fn redacted(inputs: &Inputs) -> BTreeMap<String, RedactedFile> {
        let redactor = Redactor::new(AddressMap::with_key(3));
        let files = of_inputs(inputs, &redactor).expect("texts");
        files.into_iter().map(|file| (file.name.clone(), file)).collect()
    }

    const POLICY: &str = r#"version = 1 # of Alice
includes = ["../site.toml"]
[variables]
net = "10.77.3"
workers = [0, 1]
[sets.bad]
file = "/etc/bad.txt"
[groups.g]
workers = "${workers}"
[[rules]]
name = "block-10.77.3.9"
match = { src = ["${net}.0/24", "bad"], vlan = "${uplink}" }
action = "drop"
[[tests]]
frame = "ffffffffffff0a4d03090102"
expect = "drop"
"#;
    const SITE: &str =
        "version = 1\n[[rules]]\nname = 'site'\nmatch = { dst_mac = '9c:63:c0:aa:01:02' }\naction = 'drop'\n";

    #[test]
    fn a_policy_with_files_and_variables_parses_after_it() {
        let bad = "10.77.3.9 # called at night\n2001:db8:77::/48\n";
        let inputs = inputs(POLICY, &[("../site.toml", SITE), ("/etc/bad.txt", bad)], &[("uplink", "42")]);
        let files = redacted(&inputs);
        let names: Vec<&str> = files.keys().map(String::as_str).collect();
        assert_eq!(names, ["policy/policy.toml", "policy/root/etc/bad.txt", "policy/up/site.toml"]);
        let all: String = files.values().map(|file| file.text.as_str()).collect();
        for private in ["10.77.3", "9c:63", "2001:db8:77", "Alice", "night", "0a4d0309", "${"] {
            assert!(!all.contains(private), "{private}: {all}");
        }
        let main = &files["policy/policy.toml"];
        assert_eq!(main.left_out.as_deref(), Some("1 tests with frames in hexadecimal"));
        let loader: BTreeMap<String, String> = files
            .iter()
            .map(|(name, file)| (name.trim_start_matches("policy/").to_owned(), file.text.clone()))
            .collect();
        let source = policy::Source::new("policy.toml", main.text.as_str());
        let (parsed, _) =
            policy::parse(&source, &loader).unwrap_or_else(|problems| panic!("{problems:?}\n{all}"));
        assert_eq!(parsed.rules.len(), 2);
    }

    #[test]
    fn settings_lose_comments_secrets_and_variables() {
        let redactor = Redactor::new(AddressMap::with_key(3));
        let text = "# mine\n[http]\nlisten = '10.1.2.3:9464'\ntoken_file = '/etc/steerd/token'\n[policy.variables]\nnet = '10.77'\n";
        let redacted = settings(text, &redactor).expect("TOML");
        for private in ["mine", "10.1.2.3", "10.77"] {
            assert!(!redacted.contains(private), "{redacted}");
        }
        assert!(redacted.contains(":9464") && redacted.contains("/etc/steerd/token"), "{redacted}");
        assert!(settings("[http", &redactor).is_err());
    }

    #[test]
    fn without_replacement_a_policy_stays_as_it_is() {
        let files = of_inputs(&inputs(SITE, &[], &[]), &Redactor::of_secrets()).expect("texts");
        assert_eq!(files[0].text, SITE);
    }
}
