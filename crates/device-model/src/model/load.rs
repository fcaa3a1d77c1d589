//! Device models from TOML. Errors name the file, the line, the key and the remedy.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use program::TAG_BITS;

use super::{BaseModel, DeviceModel, Emulation, PriorityTable};

/// The most bytes of a device model file.
const MAX_BYTES: u64 = 1 << 20;

/// The longest time that a packet takes to pass a group of flows. The software NIC spends it: of thousands of
/// groups, tens of milliseconds for each packet.
const MAX_NS_PER_GROUP: u32 = 10_000;

/// The file as a whole, in place of a key.
const WHOLE: &str = "device model";

/// Why a device model cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// Neither a built-in model nor a path.
    #[error(
        "no device model is called {name:?} (hint: name {}, or a file like ./nic.toml)",
        DeviceModel::KNOWN
    )]
    UnknownName {
        /// The name.
        name: String,
    },
    /// The file cannot be read.
    #[error("{}: cannot be read", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// The file is too large to be a device model.
    #[error("{}: larger than {MAX_BYTES} bytes (hint: name a device model, like config/device-model.toml)", file.display())]
    TooLarge {
        /// The file.
        file: PathBuf,
    },
    /// The contents are not a device model.
    #[error("{}:{line}: {key}: {problem} (hint: {hint})", file.display())]
    Invalid {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The key that is wrong, or "device model" for the file as a whole.
        key: String,
        /// The reason.
        problem: String,
        /// The remedy.
        hint: String,
    },
}

impl DeviceModel {
    /// Whether a model of that name is a file: whatever has a `/` or ends with `.toml`.
    #[must_use]
    pub fn is_path(name: &str) -> bool {
        name.contains('/') || name.ends_with(".toml")
    }

    /// A built-in model by its name, or the model of a file ([`is_path`](Self::is_path)).
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn named_or_file(name: &str) -> Result<Self, LoadError> {
        if !Self::is_path(name) {
            return Self::by_name(name).ok_or_else(|| LoadError::UnknownName { name: name.to_owned() });
        }
        let file = PathBuf::from(name);
        Self::parse(&file, &read(&file)?)
    }

    /// A model from the text of a file, which is named in errors.
    ///
    /// # Errors
    /// [`LoadError::Invalid`].
    pub fn parse(file: &Path, text: &str) -> Result<Self, LoadError> {
        let is_toml = toml::de::DeTable::parse(text).is_ok();
        let unreadable = |error: toml::de::Error| {
            let at = error.span().map_or(0, |span| span.start);
            let hint = "the keys are those of config/device-model.toml".to_owned();
            let mut invalid = invalid(file, text, at, error.message().to_owned(), hint);
            // The line of another file may be anything, and is not shown.
            if let (LoadError::Invalid { key, .. }, false) = (&mut invalid, is_toml) {
                WHOLE.clone_into(key);
            }
            invalid
        };
        let mut profile: Self = toml::from_str(text).map_err(unreadable)?;
        profile.emulation = emulation(profile.personality, text).map_err(unreadable)?;
        profile.check().map_err(|(key, problem, hint)| {
            let at = key_offset(text, key).unwrap_or(0);
            let mut error = invalid(file, text, at, problem, hint.to_owned());
            if let LoadError::Invalid { key: named, .. } = &mut error {
                key.clone_into(named);
            }
            error
        })?;
        Ok(profile)
    }

    /// The first key whose value is out of range, with the problem and the remedy.
    fn check(&self) -> Result<(), (&'static str, String, &'static str)> {
        let table = self.priority_table.unwrap_or(PriorityTable { entries: 1, groups: 1, group_entries: 1 });
        // A device that cannot steer has none of what flows need. Of what is halved, a program needs one.
        let least = |least: u32| if self.can_steer() { least } else { 0 };
        let optional = |limit: Option<u32>| limit.unwrap_or(u32::MAX);
        let ranges = [
            ("priorities", self.priorities, least(2)..=1 << 16),
            ("max_specs", self.max_specs, least(1)..=255),
            ("max_table", self.max_table, least(1)..=1 << 16),
            ("tag_bits", self.tag_bits, 0..=32),
            ("priority_table", table.entries, 1..=u32::MAX),
            ("priority_table", table.groups, 1..=table.entries),
            ("priority_table", table.group_entries, 1..=table.entries / table.groups.max(1)),
            ("max_flows", optional(self.max_flows), least(2)..=u32::MAX),
            ("max_shapes", optional(self.max_shapes), least(1)..=u32::MAX),
            ("max_groups", optional(self.max_groups), least(1)..=u32::MAX),
            ("ns_per_group", self.ns_per_group.unwrap_or(0), 0..=MAX_NS_PER_GROUP),
            ("max_queues", optional(self.max_queues), least(2)..=u32::MAX),
            ("max_tables", optional(self.max_tables), least(2)..=u32::MAX),
            ("max_receives", optional(self.max_receives), least(1)..=u32::MAX),
        ];
        for (key, value, range) in ranges {
            if !range.contains(&value) {
                let problem = format!("{value} is outside {}..={}", range.start(), range.end());
                return Err((key, problem, "see ibv_create_flow(3) and the device's documentation"));
            }
        }
        for (key, row) in [("max_groups", self.max_groups), ("ns_per_group", self.ns_per_group)] {
            if row.is_some() && self.priority_table.is_none() {
                let problem = "groups of flows are those of a priority_table, which is missing".to_owned();
                return Err((key, problem, "write priority_table, or leave the key out"));
            }
        }
        if self.tag_bits != 0 && self.tag_bits < TAG_BITS {
            let problem = format!("{} bits cannot hold a class, which takes {TAG_BITS}", self.tag_bits);
            return Err(("tag_bits", problem, "write 0 if the device has no flow tags that wide"));
        }
        if self.name.trim().is_empty() || self.name.chars().any(char::is_control) {
            let problem = "is empty or has control characters".to_owned();
            return Err(("name", problem, "give the model a name for messages"));
        }
        let refused = self.refusals.iter().map(|row| row.feature);
        if let Some(feature) = repeated(refused) {
            let problem = format!("{} are refused twice", feature.name());
            return Err(("refusals", problem, "keep one row per feature"));
        }
        if let Some(feature) = repeated(self.dependences.iter().map(|row| row.feature)) {
            let problem = format!("{} depend on a capability twice", feature.name());
            return Err(("dependences", problem, "keep one row per feature"));
        }
        if let Some(limit) = repeated(self.limits.iter().map(|row| row.limit)) {
            let problem = format!("the limit {limit:?} is listed twice");
            return Err(("limits", problem, "keep one row per limit"));
        }
        Ok(())
    }
}

/// The text of a device model's file.
fn read(file: &Path) -> Result<String, LoadError> {
    let unreadable = |source| LoadError::Read { file: file.to_owned(), source };
    let bytes = regular_file::read(file, MAX_BYTES).map_err(|error| match error {
        regular_file::FileError::TooLarge(_) => LoadError::TooLarge { file: file.to_owned() },
        error => unreadable(error.into()),
    })?;
    String::from_utf8(bytes).map_err(|error| unreadable(io::Error::new(io::ErrorKind::InvalidData, error)))
}

/// Reads what the software NIC has to know: as in the model of that name, but for the keys of the text.
fn emulation(base: BaseModel, text: &str) -> Result<Emulation, toml::de::Error> {
    #[derive(serde::Deserialize)]
    struct File {
        #[serde(default)]
        emulation: toml::Table,
    }
    let model: File = toml::from_str(match base {
        BaseModel::Ideal => super::IDEAL,
        BaseModel::Mlx5 => super::MLX5,
        BaseModel::Mlx4 => super::MLX4,
    })?;
    let mut table = model.emulation;
    // Where the software NIC takes more than the model promises, this is about the model's own numbers, not
    // the file's.
    for key in ["firmware_sets_max_table", "hashes_any_fields"] {
        table.remove(key);
    }
    table.extend(toml::from_str::<File>(text)?.emulation);
    table.try_into()
}

/// A value that occurs twice.
fn repeated<T: Copy + Ord>(mut values: impl Iterator<Item = T>) -> Option<T> {
    let mut seen = BTreeSet::new();
    values.find(|value| !seen.insert(*value))
}

fn invalid(file: &Path, text: &str, at: usize, problem: String, hint: String) -> LoadError {
    let before = text.get(..at).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let words = text.lines().nth(line - 1).unwrap_or_default();
    // The key of the value at that place: `{ feature = "ttl", errno = 7 }` has several on one line.
    let column = before.len() - before.rfind('\n').map_or(0, |end| end + 1);
    let start = words.get(..column).and_then(|left| left.rfind(['{', ','])).map_or(0, |place| place + 1);
    let key = words.get(start..).unwrap_or_default().split('=').next().unwrap_or_default();
    let key = key.trim_matches(|c: char| c.is_whitespace() || "[]{}\"".contains(c));
    let key = if key.is_empty() || key.starts_with('#') { WHOLE } else { key };
    LoadError::Invalid { file: file.to_owned(), line, key: key.to_owned(), problem, hint }
}

/// Where a top-level key is set.
fn key_offset(text: &str, key: &str) -> Option<usize> {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if line.split('=').next().is_some_and(|left| left.trim() == key) {
            return Some(at);
        }
        at += line.len();
    }
    None
}

/// A model of this crate. The tests read all of them.
pub(super) fn built_in(name: &str, text: &str) -> DeviceModel {
    let profile = DeviceModel::parse(Path::new(name), text);
    profile.unwrap_or_else(|error| unreachable!("built-in device model: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FileType, Mode};

    fn refused(text: &str) -> String {
        DeviceModel::parse(Path::new("nic.toml"), text).expect_err(text).to_string()
    }

    const LEAST: &str = "name = \"nic\"\npriorities = 8\nmax_specs = 4\nmax_table = 64\ntag_bits = 24\n";

    const LIMIT: &str = "{ limit = \"flows\", errno = \"ENOSPC\", source = \"x\" }";

    #[test]
    fn a_model_needs_few_keys() {
        let profile = DeviceModel::parse(Path::new("nic.toml"), LEAST).expect("a model");
        assert_eq!((profile.priorities_per_program(), profile.max_flows), (7, None));
        assert!(profile.has_tags() && profile.refusals.is_empty());
    }

    #[test]
    fn what_a_model_leaves_out_is_as_in_its_personality() {
        let text = format!("{LEAST}personality = \"mlx5\"\n[emulation]\nmax_labels = 3\n");
        let profile = DeviceModel::parse(Path::new("nic.toml"), &text).expect("a model");
        let mlx5 = DeviceModel::mlx5().emulation;
        assert!(mlx5.firmware_sets_max_table);
        assert_eq!(profile.emulation, Emulation { max_labels: 3, firmware_sets_max_table: false, ..mlx5 });
        let plain = DeviceModel::parse(Path::new("nic.toml"), LEAST).expect("a model");
        let ideal = DeviceModel::ideal().emulation;
        assert!(ideal.hashes_any_fields);
        assert_eq!(plain.emulation, Emulation { hashes_any_fields: false, ..ideal });
    }

    #[test]
    fn a_device_that_cannot_steer_needs_no_priorities() {
        let text = "name = \"nic\"\npriorities = 0\nmax_specs = 0\nmax_table = 0\ntag_bits = 0\n\
                    refusals = [{ feature = \"normal\", errno = \"EOPNOTSUPP\", source = \"x\" }]\n";
        assert!(!DeviceModel::parse(Path::new("nic.toml"), text).expect("a model").can_steer());
        assert!(refused(&text.replace("\"normal\"", "\"tag\"")).contains("priorities: 0 is outside 2..="));
    }

    /// Models cut off after each byte, and with each byte replaced.
    #[test]
    fn a_broken_file_is_an_error_or_a_model_and_never_a_panic() {
        let text = include_str!("../../models/mlx4.toml");
        let read = |text: &str| DeviceModel::parse(Path::new("nic.toml"), text).map(|_| ());
        for end in (0..text.len()).step_by(13) {
            let _ = text.get(..end).map(read);
        }
        for (at, replacement) in (0..text.len()).step_by(17).zip("\0\"[]{}=#-9.\u{7f}".chars().cycle()) {
            let mut broken = text.to_owned();
            broken.replace_range(at..=at, &replacement.to_string());
            if let Err(error) = read(&broken) {
                assert!(error.to_string().starts_with("nic.toml:"), "{error}");
            }
        }
        assert!(matches!(
            read(text.get(..text.len() / 2).unwrap_or_default()),
            Err(LoadError::Invalid { .. })
        ));
        assert!(read(&format!("emulation = {}", "[".repeat(100_000))).is_err());
    }

    #[test]
    fn the_example_is_a_model() {
        let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/device-model.toml");
        let profile = DeviceModel::named_or_file(example).expect("a model");
        assert_eq!(profile.name, "example-nic");
        assert!(!profile.allows(program::Feature::Ttl));
    }

    #[test]
    fn errors_name_file_line_key_and_remedy() {
        for (text, words) in [
            (
                format!("{LEAST}max_flow = 7\n"),
                ["nic.toml:6: max_flow: ", "unknown field", "(hint: the keys are"],
            ),
            (LEAST.replace("64", "\"many\""), ["nic.toml:4: max_table: ", "invalid type", "hint"]),
            (LEAST.replace("= 8", "= 1"), ["nic.toml:2: priorities: ", "1 is outside 2..=65536", "hint"]),
            (LEAST.replace("name = \"nic\"\n", ""), ["nic.toml:1: ", "missing field `name`", "hint"]),
            (
                format!(
                    "{LEAST}refusals = [\n{{ feature = \"ttl\", errno = \"E2BIG\", source = \"x\" }},\n]\n"
                ),
                ["nic.toml:7: errno: ", "unknown variant `E2BIG`", "hint"],
            ),
        ] {
            let error = refused(&text);
            for word in words {
                assert!(error.contains(word), "{error}: {word}");
            }
        }
        for (text, words) in [
            (LEAST.replace("= 24", "= 21"), "nic.toml:5: tag_bits: 21 bits cannot hold a class"),
            (
                LEAST.replace("\"nic\"", "\"n\\u001bic\""),
                "nic.toml:1: name: is empty or has control characters",
            ),
            (
                format!(
                    "{LEAST}priority_table = {{ entries = 10, groups = 65536, group_entries = 65537 }}\n"
                ),
                "nic.toml:6: priority_table: 65536 is outside 1..=10",
            ),
            (
                format!("{LEAST}priority_table = {{ entries = 10, groups = 2, group_entries = 0 }}\n"),
                "nic.toml:6: priority_table: 0 is outside 1..=5",
            ),
            (
                format!("{LEAST}limits = [{LIMIT}, {LIMIT}]\n"),
                "nic.toml:6: limits: the limit Flows is listed twice",
            ),
        ] {
            let error = refused(&text);
            assert!(error.contains(words), "{error}: {words}");
        }
        for (row, words) in [
            ("max_queues = 0", "nic.toml:6: max_queues: 0 is outside 2..=4294967295 (hint: "),
            ("max_flows = 1", "nic.toml:6: max_flows: 1 is outside 2..=4294967295"),
            ("max_shapes = 0", "nic.toml:6: max_shapes: 0 is outside 1..="),
            ("ns_per_group = 10001", "nic.toml:6: ns_per_group: 10001 is outside 0..=10000"),
            ("max_tables = -1", "nic.toml:6: max_tables: invalid value"),
            ("max_receives = 4294967296", "nic.toml:6: max_receives: invalid value"),
            ("personality = \"mlx6\"", "nic.toml:6: personality: unknown variant `mlx6`"),
            ("emulation = { unknown = 1 }", "nic.toml:6: unknown: unknown field"),
            ("device = { colour = \"red\" }", "nic.toml:6: colour: unknown field"),
            ("refusals = [{ feature = ", "nic.toml:6: "),
        ] {
            let error = refused(&format!("{LEAST}{row}\n"));
            assert!(error.contains(words) && error.contains("hint"), "{error}: {words}");
        }
        let other = refused("# users\nroot:$6$secret:19000:0\n");
        assert!(other.starts_with("nic.toml:2: device model: ") && !other.contains("secret"), "{other}");
        let huge = refused(&LEAST.replace("= 8", "= 65537"));
        assert!(huge.contains("nic.toml:2: priorities: 65537 is outside 2..=65536"), "{huge}");
        let row = "{ feature = \"ttl\", errno = \"EINVAL\", source = \"x\" }";
        let twice = refused(&format!("{LEAST}refusals = [{row}, {row}]\n"));
        assert!(twice.contains("nic.toml:6: refusals: IPv4 times to live are refused twice"), "{twice}");
    }

    #[test]
    fn a_name_is_a_built_in_model_and_a_path_is_a_file() {
        assert_eq!(DeviceModel::named_or_file("mlx5").expect("built in"), DeviceModel::mlx5());
        let error = DeviceModel::named_or_file("mlx6").expect_err("no model").to_string();
        assert!(error.contains("mlx5 (ConnectX-4 and later), mlx4 (ConnectX-3), "), "{error}");
        assert!(matches!(DeviceModel::named_or_file("./no.toml"), Err(LoadError::Read { .. })));
    }

    #[test]
    fn only_a_regular_file_is_read() {
        let folder = tempfile::tempdir().expect("folder");
        let fifo = folder.path().join("nic.toml");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .expect("made");
        for path in [fifo.to_str().expect("path"), "/dev/zero"] {
            let error = DeviceModel::named_or_file(path).expect_err(path);
            assert!(matches!(error, LoadError::Read { .. }), "{error}");
        }
    }
}
