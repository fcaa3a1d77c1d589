//! A policy read with its set files and included files, or anew from the inputs that were kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use policy::{Diagnostics, Folder, LoadOptions, NoFiles, SetLoader, Source};

use super::Read;
use super::inputs::{InputFile, Inputs, Recorder};
use crate::settings::{PolicySource, PolicyText};

/// Reads and parses the policy with its set files and included files.
pub(crate) fn load(source: &PolicySource) -> Result<Read, Diagnostics> {
    match &source.text {
        PolicyText::File(path) => {
            parse(&policy::read_policy(path)?, &Folder(source.folder()), &source.variables)
        }
        PolicyText::BuiltIn { name, text } => parse(&Source::new(*name, *text), &NoFiles, &source.variables),
        PolicyText::Read(text) => parse(text, &Folder(source.folder()), &source.variables),
    }
}

/// Parses a policy anew from its inputs. `None`: their text was not kept.
pub(crate) fn load_inputs(inputs: &Inputs) -> Option<Result<Read, Diagnostics>> {
    let text = Source::new(inputs.name.as_str(), inputs.text.as_deref()?);
    let file = |(name, file): (&String, &InputFile)| Some((name.clone(), file.text.clone()?));
    let files: BTreeMap<String, String> = inputs.files.iter().filter_map(file).collect();
    Some(parse(&text, &files, &inputs.variables))
}

/// Parses a policy that was read, and the files that it names.
pub(crate) fn parse(
    text: &Source,
    loader: &dyn SetLoader,
    variables: &BTreeMap<String, String>,
) -> Result<Read, Diagnostics> {
    let recorder = Recorder::new(loader);
    let options = LoadOptions { variables: variables.clone() };
    let (policy, warnings) = policy::parse_with(text, &recorder, &options)?;
    Ok(Read { policy, warnings, inputs: Arc::new(recorder.into_inputs(text, variables)) })
}
