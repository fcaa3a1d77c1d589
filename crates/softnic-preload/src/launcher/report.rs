//! `softnic list`: which methods work here, and what the options take.

use std::io::Write as _;

use softnic::Personality;
use softnic_verbs::preload::launch;
use wire::SHORT_FORMS;

use crate::{Error, plugin};

pub(crate) fn print() -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    let mut line = |text: String| {
        writeln!(out, "{text}").map_err(|source| Error::Step { step: "writing".to_owned(), source })
    };
    let library = launch::library()?;
    line(format!("library      {}", library.display()))?;
    line("methods (--method)".to_owned())?;
    let preload = launch::check_path(&library).map_err(|error| Error::from(error).to_string());
    let mlx5 = preload.clone().and_then(|()| launch::check_mlx5().map_err(|error| error.to_string()));
    for (method, works) in [("plugin", plugin::probe()), ("preload", preload), ("mlx5", mlx5)] {
        let works = works.map_or_else(|reason| format!("no: {reason}"), |()| "works".to_owned());
        line(format!("  {method:<10} {works}"))?;
    }
    line("wires (--wire, SOFTNIC_WIRE)".to_owned())?;
    for (form, meaning) in SHORT_FORMS {
        line(format!("  {form:<22} {meaning}"))?;
    }
    let personalities = Personality::ALL.map(Personality::name).join(", ");
    line(format!(
        "personalities (--personality, SOFTNIC_PERSONALITY)\n  {personalities}, or the file of a device model"
    ))
}
