//! The exit codes of the commands, as `--help` and the man pages show them.

use std::fmt::Write as _;

/// Exit codes and their meanings. A line break is one of `--help`.
pub(super) type ExitCodes = &'static [(u8, &'static str)];

/// The codes of commands without a table of their own, and their sum.
pub(super) const ALL: ExitCodes = &[
    (0, "success; diff: the policies do the same"),
    (
        1,
        "the policy has errors; check and run: the device cannot run it; check: --deny names\n\
         what was found; diff: the policies differ; explain and import: the input cannot be read;\n\
         doctor: something must be changed;\n\
         reload: the daemon refuses the policy, the previous one stays in force;\n\
         healthcheck: the daemon is not healthy, or does not answer",
    ),
    (2, "the command line is wrong; diff: a policy has errors, or no answer was found"),
    (3, "the settings are wrong (file, STEERD_ variable or flag); run: 78"),
    (4, "the device: not found, port down, no permission, or an MTU does not fit; run: 69"),
    (5, "a worker: core not available, not enough memory or locked memory; run: 71"),
    (6, "the HTTP address or the socket of the API cannot be used; run: 73"),
    (7, "something failed while running; run: 70"),
    (8, "the running daemon cannot be reached, does not answer, or refuses the request"),
    (
        9,
        "a file cannot be read now, and a later try may succeed: a file of the policy (run), or the\n\
         settings for lack of descriptors or memory",
    ),
    (10, "test: a test of a policy failed"),
    (130, "terminated by a second Ctrl-C"),
];

pub(super) const RUN: ExitCodes = &[
    (0, "success"),
    (
        1,
        "the policy has errors, the device cannot run it, or the tests that policy.require_tests\n\
         asks for fail",
    ),
    (2, "the command line is wrong"),
    (
        9,
        "a file of the policy, or the settings for lack of descriptors or memory, cannot be read\n\
         now, and a later try may succeed",
    ),
    (69, "the device: not found, port down, no permission, an MTU that does not fit"),
    (70, "something failed while running"),
    (71, "a worker: core not available, not enough memory or locked memory"),
    (73, "the HTTP address or the socket of the API cannot be used"),
    (
        78,
        "the settings are wrong (file, STEERD_ variable or flag), or ask for workers or filters that\n\
         the NIC does not have",
    ),
    (130, "terminated by a second Ctrl-C"),
];

pub(super) const CHECK: ExitCodes = &[
    (0, "the device can run the policy, and nothing that --deny names was found"),
    (
        1,
        "the policy has errors, one of its tests fails, the device cannot run it, or --deny names\n\
         what was found",
    ),
    (2, "the command line is wrong"),
    (3, "the settings are wrong"),
    (4, "the device of the settings is not found, or an MTU does not fit"),
    (5, "--config: a core is not available, or not enough memory or locked memory"),
    (6, "--config: the HTTP address or the socket of the API cannot be used"),
    (9, "the settings cannot be read now, and a later try may succeed"),
];

pub(super) const TEST: ExitCodes = &[
    (0, "all tests passed, or there are none"),
    (1, "a policy has errors, or the device cannot run it"),
    (2, "the command line is wrong"),
    (3, "the settings are wrong"),
    (4, "the device of the settings is not found, or an MTU does not fit"),
    (7, "the JUnit file cannot be written"),
    (10, "a test failed"),
];

pub(super) const LSP: ExitCodes = &[
    (0, "the editor ended the session"),
    (1, "the session ended without `shutdown`"),
    (2, "the command line is wrong"),
    (7, "a message has no frame, or an option names a model or settings that cannot be used"),
];

pub(super) const DOCTOR: ExitCodes = &[
    (0, "nothing of the level `must` was found"),
    (1, "something of the level `must` was found"),
    (2, "the command line is wrong"),
    (3, "the settings are wrong"),
    (9, "the settings cannot be read now, and a later try may succeed"),
];

pub(super) const RELOAD: ExitCodes = &[
    (0, "the policy is in force"),
    (1, "the daemon refuses the policy, the previous one stays in force"),
    (8, "the daemon cannot be reached, does not answer, or does not let this user reload"),
];

/// The exit codes of `diff`, which are those of diff(1).
pub(super) const DIFF: ExitCodes = &[
    (0, "both policies treat every packet alike, however they are written"),
    (1, "they differ; with --model or --workers also: a rule is decided elsewhere"),
    (2, "a policy has errors, or the comparison would take too long"),
    (8, "with --running or --live: the daemon cannot be reached, does not answer, or refuses the sample"),
];

/// The codes of a command by its name, such as "steerd run".
pub(super) fn of(command: &str) -> Option<ExitCodes> {
    match command {
        "steerd" => Some(ALL),
        "steerd run" => Some(RUN),
        "steerd check" => Some(CHECK),
        "steerd test" => Some(TEST),
        "steerd lsp" => Some(LSP),
        "steerd doctor" => Some(DOCTOR),
        "steerd reload" | "steerd confirm" | "steerd rollback" => Some(RELOAD),
        "steerd diff" => Some(DIFF),
        _ => None,
    }
}

/// The text below the help of a command.
pub(super) fn help(codes: ExitCodes) -> String {
    let mut text = "Exit codes:".to_owned();
    for (code, meaning) in codes {
        let _ = write!(text, "\n  {code}  {}", meaning.replace('\n', "\n     "));
    }
    text
}
