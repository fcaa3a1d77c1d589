//! Container images in the layout of OCI: their parts are checked, and their program runs as a runtime of
//! containers would run it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use super::{not_run, stderr, stdout};

/// An unpacked image.
pub struct Image {
    root: PathBuf,
    /// The object `config` of its configuration.
    config: Value,
}

/// Unpacks an archive into a new folder.
fn unpacked(archive: &Path, folder: PathBuf) -> PathBuf {
    std::fs::create_dir(&folder).expect("made");
    let tar = Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&folder).status();
    assert!(tar.expect("tar").success(), "{}", archive.display());
    folder
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("JSON")
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|text| Some(text.as_str()?.to_owned())).collect()
}

impl Image {
    /// Unpacks an archive below a folder. Every blob has the digest and the size of its descriptor.
    pub fn unpack(archive: &Path, folder: &Path) -> Self {
        let image = unpacked(archive, folder.join("image"));
        // A blob by its descriptor.
        let blob = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().and_then(|digest| digest.strip_prefix("sha256:"));
            let path = image.join("blobs/sha256").join(digest.expect("a digest"));
            let sum = Command::new("sha256sum").arg(&path).output().expect("sha256sum");
            assert!(stdout(&sum).starts_with(digest.expect("a digest")), "{descriptor}");
            let bytes = std::fs::metadata(&path).expect("a file").len();
            assert_eq!(descriptor["size"].as_u64(), Some(bytes), "{descriptor}");
            path
        };
        assert_eq!(json(&image.join("oci-layout"))["imageLayoutVersion"], "1.0.0");
        let manifest = json(&blob(&json(&image.join("index.json"))["manifests"][0]));
        let mut config = json(&blob(&manifest["config"]));
        let layer = blob(&manifest["layers"][0]);
        let sum = Command::new("sh").args(["-c", "gzip -dc \"$0\" | sha256sum"]).arg(&layer).output();
        let diff = format!("sha256:{}", stdout(&sum.expect("sh")).split(' ').next().unwrap_or_default());
        assert_eq!(config["rootfs"]["diff_ids"][0], diff);
        Self { root: unpacked(&layer, folder.join("root")), config: config["config"].take() }
    }

    /// Runs the program of the image with these arguments, or with those of the image. `None`: this user or
    /// this host cannot do it, which is reported.
    pub fn run(&self, arguments: &[&str]) -> Option<Output> {
        // What a runtime of containers mounts, in a mount namespace of the command's own.
        let enter = "for d in proc dev sys; do mkdir -p $0/$d && mount --rbind /$d $0/$d || exit 1; done; exec chroot \"$@\"";
        let mut command = Command::new("unshare");
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        let environment = texts(&self.config["Env"]);
        command.envs(environment.iter().filter_map(|text| text.split_once('=')));
        command.args(["--mount", "--propagation", "private", "sh", "-c", enter]).arg(&self.root);
        command.args(self.config["User"].as_str().map(|user| format!("--userspec={user}"))).arg(&self.root);
        command.args(texts(&self.config["Entrypoint"]));
        match arguments {
            [] => command.args(texts(&self.config["Cmd"])),
            arguments => command.args(arguments),
        };
        let output = command.output().expect("it runs");
        let text = stderr(&output);
        // A program that cannot be run is a fault of the image.
        let is_broken = text.starts_with("chroot: failed to run command");
        if !is_broken && ["unshare: ", "mount: ", "chroot: "].iter().any(|refused| text.starts_with(refused))
        {
            not_run("the program of an image", text.trim());
            return None;
        }
        Some(output)
    }
}
