//! What is expected of each personality, and where that comes from.

use std::fmt;

use softnic::Personality;

/// What a device makes of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// It does what was asked.
    Works,
    /// It says yes, and nothing comes of it.
    Ignored,
    /// It says no, with this errno.
    Refused(i32),
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Works => f.pad("works"),
            Self::Ignored => f.pad("ignored"),
            Self::Refused(errno) => f.pad(&format!("refused: {}", errno_name(*errno))),
        }
    }
}

/// The answers of the personalities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    ideal: Answer,
    mlx5: Answer,
    mlx4: Answer,
    /// Where it comes from that one refuses: manual page, kernel file or provider file.
    pub source: &'static str,
    /// What a real mlx5 device may do otherwise than the soft NIC that plays it, and by what; empty: nothing known.
    pub mlx5_varies: &'static str,
}

impl Expected {
    /// Everywhere.
    pub const WORKS: Self = Self::all(Answer::Works);

    pub(crate) const fn all(answer: Answer) -> Self {
        Self { ideal: answer, mlx5: answer, mlx4: answer, source: "", mlx5_varies: "" }
    }

    /// Refused everywhere with one errno.
    pub(crate) const fn refused(errno: i32, source: &'static str) -> Self {
        Self::all(Answer::Refused(errno)).because(source)
    }

    pub(crate) const fn ideal(mut self, answer: Answer) -> Self {
        self.ideal = answer;
        self
    }

    pub(crate) const fn mlx5(mut self, answer: Answer) -> Self {
        self.mlx5 = answer;
        self
    }

    pub(crate) const fn mlx4(mut self, answer: Answer) -> Self {
        self.mlx4 = answer;
        self
    }

    pub(crate) const fn because(mut self, source: &'static str) -> Self {
        self.source = source;
        self
    }

    pub(crate) const fn mlx5_varies(mut self, by: &'static str) -> Self {
        self.mlx5_varies = by;
        self
    }

    /// What one personality answers.
    pub fn of(&self, personality: Personality) -> Answer {
        match personality {
            Personality::Mlx5 => self.mlx5,
            Personality::Mlx4 => self.mlx4,
            _ => self.ideal,
        }
    }

    /// Whether somebody does not do it.
    pub fn any_refusal(&self) -> bool {
        [self.ideal, self.mlx5, self.mlx4].iter().any(|answer| *answer != Answer::Works)
    }
}

/// The name of an errno that a verb gives.
pub(crate) fn errno_name(errno: i32) -> String {
    let name = match errno {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::EIO => "EIO",
        libc::ENXIO => "ENXIO",
        libc::ENOMEM => "ENOMEM",
        libc::EBUSY => "EBUSY",
        libc::EEXIST => "EEXIST",
        libc::ENODEV => "ENODEV",
        libc::EINVAL => "EINVAL",
        libc::ENOSPC => "ENOSPC",
        libc::ENOSYS => "ENOSYS",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        other => return format!("errno {other}"),
    };
    name.into()
}
