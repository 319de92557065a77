//! The author of a library, who writes anything: files that are no prompts, prompts that cannot be
//! rendered, texts under the definition of another, links to wherever.

use std::path::Path;

use fastrand::Rng;

use super::{Plan, Prompt, State, Upstream};
use crate::disk::SimDisk;
use crate::machine::trace;

/// The words of a file outside of all libraries, which must reach no client.
pub const OUTSIDE: &str = "kept outside of all libraries";

/// The folder of that file.
const OUTSIDE_FOLDER: &str = "/outside";

/// Entries that an author adds to a library, of which none is a prompt that is served.
const LITTER: [&str; 9] = [
    "0-link.md",
    "circle.md",
    "hidden.md",
    ".hidden.md",
    "labels.toml",
    "lost.md",
    "note.txt",
    "out",
    "versioned",
];

/// What became of a prompt whose file is not its own.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Oddity {
    /// No valid file, or two: it is not listed.
    Unlisted,
    /// It is listed, and its text is another one, or cannot be rendered.
    OtherText,
}

impl State {
    /// The prompts that are listed.
    pub(super) fn listed(&self) -> Vec<Prompt> {
        let is_listed = |name: &str| self.oddities.get(name) != Some(&Oddity::Unlisted);
        self.prompts.values().filter(|prompt| is_listed(&prompt.name)).cloned().collect()
    }
}

impl Upstream {
    /// Whether the text of a prompt is not its own.
    pub fn has_other_text(&self, name: &str) -> bool {
        self.lock().oddities.get(name) == Some(&Oddity::OtherText)
    }

    /// Writes anything into the folder of a library, in the place of a prompt's file or besides.
    pub fn write_anything(&self, rng: &mut Rng) {
        let Some(disk) = self.0.disk.get() else { return };
        let Some(prompt) = rng.choice(self.lock().prompts.values().cloned().collect::<Vec<_>>())
        else {
            return;
        };
        if rng.u8(..) < 60 {
            litter(&self.0.plan, &prompt, disk, rng);
        } else {
            let oddity = self.spoil(&prompt, disk, rng);
            trace::note(&self.0.plan.id, &format!("an author makes {} {oddity:?}", prompt.name));
        }
        self.offer();
    }

    /// Writes valid files again.
    pub fn restore(&self) {
        let Some(disk) = self.0.disk.get() else { return };
        trace::note(&self.0.plan.id, "an author restores all files");
        for name in LITTER {
            disk.remove(&self.0.plan.folder().join(name));
        }
        self.restore_versions();
        let odd: Vec<_> = {
            let state = self.lock();
            let odd = state.oddities.keys().filter_map(|name| state.prompts.get(name));
            odd.cloned().collect()
        };
        odd.iter().for_each(|prompt| self.write(prompt));
    }

    /// Removes the files of a prompt, whatever they are.
    pub(super) fn clear(&self, name: &str) {
        let Some(disk) = self.0.disk.get() else { return };
        if self.lock().oddities.remove(name).is_some() {
            for file in [format!("{name}.md"), successor(name), twin(name)] {
                disk.remove(&self.0.plan.folder().join(file));
            }
        }
    }

    /// Puts something else in the place of a prompt's file.
    fn spoil(&self, prompt: &Prompt, disk: &SimDisk, rng: &mut Rng) -> Oddity {
        let folder = self.0.plan.folder();
        let name = &prompt.name;
        let file = folder.join(format!("{name}.md"));
        self.clear(name);
        disk.remove(&file);
        let valid = self.file_of(prompt);
        let front = front_matter(&valid);
        let (oddity, bytes) = match rng.u8(..10) {
            kind @ 0..4 => (Oddity::Unlisted, broken_file(kind, name, &valid, rng)),
            4 => {
                disk.write(&folder.join(twin(name)), valid.as_bytes());
                (Oddity::Unlisted, valid.clone().into_bytes())
            }
            5 => {
                let outside = outside(disk);
                disk.symlink(Path::new(&outside), &file);
                (Oddity::Unlisted, Vec::new())
            }
            6 => {
                disk.create_folder(&file);
                (Oddity::Unlisted, Vec::new())
            }
            7 => {
                let loops = "{% for a in range(9000) %}{% for b in range(9000) %}{{ nonce }}\
                     {% endfor %}{% endfor %}";
                (Oddity::OtherText, [front, loops].concat().into_bytes())
            }
            8 => {
                let line = "x".repeat(rng.usize(1..400_000));
                let huge = valid.replacen("---\n", &format!("---\n# {line}\n"), 1);
                (Oddity::OtherText, huge.into_bytes())
            }
            _ => {
                let other = valid.replace(" for {{ nonce", " in other words for {{ nonce");
                (Oddity::OtherText, other.into_bytes())
            }
        };
        // A file that was valid would stay served in its earlier text.
        let file = match oddity {
            Oddity::Unlisted => folder.join(successor(name)),
            Oddity::OtherText => file,
        };
        // Links and folders are there already.
        if !bytes.is_empty() {
            disk.write(&file, &bytes);
        }
        self.lock().oddities.insert(name.clone(), oddity);
        oddity
    }
}

/// The name of the file that takes the place of a prompt's valid file.
fn successor(name: &str) -> String {
    format!("new-{name}.md")
}

/// The name of the second file of a prompt.
fn twin(name: &str) -> String {
    format!("twin-of-{name}.md")
}

/// The path of a prompt outside of all libraries.
fn outside(disk: &SimDisk) -> String {
    let file = format!("{OUTSIDE_FOLDER}/secret.md");
    disk.create_folder(Path::new(OUTSIDE_FOLDER));
    let text = format!("---\nname: open-outside\ndescription: {OUTSIDE}\n---\n{OUTSIDE}");
    disk.write(Path::new(&file), text.as_bytes());
    file
}

/// Adds an entry that changes no prompt.
fn litter(plan: &Plan, prompt: &Prompt, disk: &SimDisk, rng: &mut Rng) {
    let outside = outside(disk);
    let name = LITTER[rng.usize(..LITTER.len())];
    // Its labels count.
    if plan.has_versions && name == "labels.toml" {
        return;
    }
    let path = plan.folder().join(name);
    let of_prompt = format!("{}.md", prompt.name);
    disk.remove(&path);
    match name {
        "0-link.md" => disk.symlink(Path::new(&of_prompt), &path),
        "circle.md" => disk.symlink(Path::new("circle.md"), &path),
        "hidden.md" => disk.symlink(Path::new(".hidden.md"), &path),
        ".hidden.md" => disk.write(&path, b"---\nname: open-hidden\n---\nhidden"),
        "lost.md" => disk.symlink(Path::new("nowhere.md"), &path),
        "note.txt" => disk.symlink(Path::new(&outside), &path),
        "out" => disk.symlink(Path::new(OUTSIDE_FOLDER), &path),
        "labels.toml" => {
            let Prompt { name, .. } = prompt;
            let nonsense: [&[u8]; 6] = [
                b"[",
                b"\xff\xfe",
                b"[open-1]\nproduction = 7\n[open-1]\n",
                b"[open-1]\nproduction = \"latest\"\n",
                &b"a = ".repeat(50_000),
                &[b"[".repeat(20_000), name.as_bytes().to_vec()].concat(),
            ];
            disk.write(&path, nonsense[rng.usize(..nonsense.len())]);
        }
        _ => {
            let versions = path.join(&prompt.name).join("versions");
            disk.create_folder(&versions);
            disk.write(&versions.join("next.md"), b"---\nname: nobody\n---\nx");
            disk.write(&versions.join("1.md"), b"---\nname: [\n---\nx");
        }
    }
}

/// The lines of a file before its template.
fn front_matter(valid: &str) -> &str {
    &valid[..valid.rfind("---\n").map_or(0, |at| at + "---\n".len())]
}

/// A file that is no prompt, of one of four kinds.
pub(super) fn broken_file(kind: u8, name: &str, valid: &str, rng: &mut Rng) -> Vec<u8> {
    let front = front_matter(valid);
    match kind {
        0 => broken_front_matter(name, rng).into_bytes(),
        1 => broken_encoding(valid, rng),
        2 => valid.as_bytes()[..rng.usize(..front.len() - 1)].to_vec(),
        _ => [front, &broken_template(rng)].concat().into_bytes(),
    }
}

/// A file whose front matter is not valid.
fn broken_front_matter(name: &str, rng: &mut Rng) -> String {
    let front = match rng.u8(..11) {
        0 => "name: [".to_owned(),
        1 => format!("name: {name}\nname: {name}"),
        2 => format!("name: {name}\nunknown: 1"),
        3 => format!("name: {name}@1"),
        4 => "name: *a".to_owned(),
        5 => "name: &a [*a, *a]".to_owned(),
        6 => format!("name: {name}\nicons: {}", "[".repeat(20_000)),
        7 => format!("name: {name}\narguments: {{{{{{"),
        8 => format!("{name}: {}", "name: ".repeat(20_000)),
        9 => {
            let twice = |of: char, to: char| format!("{of}: &{of} [*{to},*{to},*{to},*{to}]\n");
            let all: String = ('b'..='z').zip('a'..).map(|(of, to)| twice(of, to)).collect();
            format!("a: &a [x,x]\n{all}name: {name}")
        }
        // There is none.
        _ => return format!("name: {name}\n"),
    };
    format!("---\n{front}\n---\nsays")
}

/// A file that is not UTF-8, anywhere in it.
fn broken_encoding(valid: &str, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = valid.as_bytes().to_vec();
    bytes.insert(rng.usize(..=bytes.len()), 0xff);
    bytes
}

/// A template that no prompt can have.
fn broken_template(rng: &mut Rng) -> String {
    match rng.u8(..10) {
        0 => "{{ nonce".to_owned(),
        1 => "{% for a in nonce %}".to_owned(),
        2 => "{{ nope }}".to_owned(),
        3 => "{{ 9 ** 9 ** 9 }}".to_owned(),
        4 => "{% include 'note.txt' %}".to_owned(),
        5 => "{{ embed(\"note.txt\") }}".to_owned(),
        6 => format!("{{{{ {}nonce{} }}}}", "(".repeat(5_000), ")".repeat(5_000)),
        7 => "{{ nonce }}".repeat(7_000),
        8 => format!("{{% if nonce %}}{}{{% endif %}}", "{% elif nonce %}".repeat(300)),
        _ => "## user\nx\n".repeat(1_500),
    }
}
