//! Services that gnome-keyring cannot play without a desktop: one that never answers, and one that shows prompts.

#![expect(clippy::used_underscore_binding, reason = "the macro of the interfaces names all arguments")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use zbus::object_server::SignalEmitter;
use zbus::zvariant::{ObjectPath, OwnedObjectPath, OwnedValue, Value};
use zbus::{Connection, fdo, interface};

const SECRETS: &str = "org.freedesktop.secrets";
const ROOT: &str = "/org/freedesktop/secrets";
const COLLECTION: &str = "/org/freedesktop/secrets/collection/test";
const OTHER_COLLECTION: &str = "/org/freedesktop/secrets/collection/work";
const ITEM: &str = "/org/freedesktop/secrets/collection/test/1";
const PROMPT: &str = "/org/freedesktop/secrets/prompt/1";

fn path(text: &'static str) -> OwnedObjectPath {
    ObjectPath::from_static_str(text).unwrap().into()
}

struct Silent;

#[interface(name = "org.freedesktop.Secret.Service")]
impl Silent {
    async fn open_session(
        &self,
        _algorithm: &str,
        _input: Value<'_>,
    ) -> fdo::Result<(OwnedValue, OwnedObjectPath)> {
        std::future::pending().await
    }
}

/// A service that never answers.
pub(crate) async fn silent(address: &str) -> Connection {
    let builder = zbus::connection::Builder::address(address).unwrap();
    builder.serve_at(ROOT, Silent).unwrap().name(SECRETS).unwrap().build().await.unwrap()
}

/// What the user does with a prompt.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Unlocks,
    Dismisses,
    Never,
}

type Secret = (OwnedObjectPath, Vec<u8>, Vec<u8>, String);

struct State {
    answer: Answer,
    /// The answer to the next prompt, in place of that.
    next_answer: Option<Answer>,
    is_locked: bool,
    prompts: usize,
    secret: Option<Secret>,
    attributes: HashMap<String, String>,
    /// Whether items cannot be written.
    is_full: bool,
    /// Whether items cannot be deleted.
    keeps_items: bool,
}

type Shared = Arc<Mutex<State>>;

/// A service with one item in the default collection, which is locked until a prompt is answered, and with another
/// collection that stays locked.
pub(crate) struct Prompting {
    state: Shared,
    #[expect(dead_code, reason = "serves until it is dropped")]
    bus: Connection,
}

impl Prompting {
    pub(crate) async fn start(address: &str, answer: Answer) -> Self {
        let state = Arc::new(Mutex::new(State {
            answer,
            next_answer: None,
            is_locked: true,
            prompts: 0,
            secret: None,
            attributes: HashMap::new(),
            is_full: false,
            keeps_items: false,
        }));
        let builder = zbus::connection::Builder::address(address).unwrap();
        let builder = builder.serve_at(ROOT, Service(Arc::clone(&state))).unwrap();
        let builder = builder.serve_at(COLLECTION, Collection(Arc::clone(&state))).unwrap();
        let builder = builder.serve_at(OTHER_COLLECTION, LockedCollection).unwrap();
        let builder = builder.serve_at(ITEM, Item(Arc::clone(&state))).unwrap();
        let builder = builder.serve_at(PROMPT, Prompt(Arc::clone(&state))).unwrap();
        let bus = builder.name(SECRETS).unwrap().build().await.unwrap();
        Self { state, bus }
    }

    pub(crate) fn lock(&self) {
        self.state.lock().unwrap().is_locked = true;
    }

    pub(crate) fn answer_once(&self, answer: Answer) {
        self.state.lock().unwrap().next_answer = Some(answer);
    }

    pub(crate) fn refuse_writes(&self) {
        self.state.lock().unwrap().is_full = true;
    }

    pub(crate) fn keep_items(&self) {
        self.state.lock().unwrap().keeps_items = true;
    }

    pub(crate) fn prompts(&self) -> usize {
        self.state.lock().unwrap().prompts
    }

    /// The secret of the item.
    pub(crate) fn secret(&self) -> Option<String> {
        let state = self.state.lock().unwrap();
        state.secret.as_ref().map(|(_, _, content, _)| String::from_utf8(content.clone()).unwrap())
    }
}

struct Service(Shared);

#[interface(name = "org.freedesktop.Secret.Service")]
impl Service {
    #[zbus(property)]
    #[expect(clippy::unused_self, reason = "a property of D-Bus")]
    fn collections(&self) -> Vec<OwnedObjectPath> {
        vec![path(COLLECTION), path(OTHER_COLLECTION)]
    }

    #[expect(clippy::unused_self, reason = "a method of D-Bus")]
    fn open_session(&self, _algorithm: &str, _input: Value<'_>) -> (OwnedValue, OwnedObjectPath) {
        (OwnedValue::try_from(Value::from("")).unwrap(), path("/org/freedesktop/secrets/session/1"))
    }

    #[expect(clippy::unused_self, reason = "a method of D-Bus")]
    fn read_alias(&self, _name: &str) -> OwnedObjectPath {
        path(COLLECTION)
    }

    #[expect(clippy::needless_pass_by_value, reason = "a method of D-Bus")]
    fn search_items(
        &self,
        attributes: HashMap<String, String>,
    ) -> (Vec<OwnedObjectPath>, Vec<OwnedObjectPath>) {
        assert_eq!(attributes["application"], "portcullis");
        let state = self.0.lock().unwrap();
        let is_found = attributes.iter().all(|(name, value)| state.attributes.get(name) == Some(value));
        let items = if is_found && state.secret.is_some() { vec![path(ITEM)] } else { Vec::new() };
        if state.is_locked { (Vec::new(), items) } else { (items, Vec::new()) }
    }

    #[expect(clippy::unused_self, reason = "a method of D-Bus")]
    fn unlock(&self, _objects: Vec<OwnedObjectPath>) -> (Vec<OwnedObjectPath>, OwnedObjectPath) {
        (Vec::new(), path(PROMPT))
    }
}

struct Collection(Shared);

#[interface(name = "org.freedesktop.Secret.Collection")]
impl Collection {
    #[zbus(property)]
    fn locked(&self) -> bool {
        self.0.lock().unwrap().is_locked
    }

    fn create_item(
        &self,
        mut properties: HashMap<String, OwnedValue>,
        secret: Secret,
        replace: bool,
    ) -> fdo::Result<(OwnedObjectPath, OwnedObjectPath)> {
        assert!(replace);
        let mut state = self.0.lock().unwrap();
        if state.is_full {
            return Err(fdo::Error::NoMemory("of the test".to_owned()));
        }
        let attributes = properties.remove("org.freedesktop.Secret.Item.Attributes").unwrap();
        state.attributes = attributes.try_into().unwrap();
        state.secret = Some(secret);
        Ok((path(ITEM), path("/")))
    }
}

struct LockedCollection;

#[interface(name = "org.freedesktop.Secret.Collection")]
impl LockedCollection {
    #[zbus(property)]
    #[expect(clippy::unused_self, reason = "a property of D-Bus")]
    fn locked(&self) -> bool {
        true
    }

    #[zbus(property)]
    #[expect(clippy::unused_self, reason = "a property of D-Bus")]
    fn label(&self) -> String {
        "Work".to_owned()
    }
}

struct Item(Shared);

#[interface(name = "org.freedesktop.Secret.Item")]
impl Item {
    #[zbus(property)]
    fn attributes(&self) -> HashMap<String, String> {
        self.0.lock().unwrap().attributes.clone()
    }

    fn get_secret(&self, _session: OwnedObjectPath) -> (Secret,) {
        (self.0.lock().unwrap().secret.clone().unwrap(),)
    }

    fn delete(&self) -> fdo::Result<OwnedObjectPath> {
        let mut state = self.0.lock().unwrap();
        // As services answer that do not have the method.
        if state.keeps_items {
            return Err(fdo::Error::UnknownMethod("of the test".to_owned()));
        }
        state.secret = None;
        Ok(path("/"))
    }
}

struct Prompt(Shared);

#[interface(name = "org.freedesktop.Secret.Prompt")]
impl Prompt {
    async fn prompt(
        &self,
        _window: &str,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) -> fdo::Result<()> {
        let answer = {
            let mut state = self.0.lock().unwrap();
            state.prompts += 1;
            let answer = state.next_answer.take().unwrap_or(state.answer);
            state.is_locked &= answer != Answer::Unlocks;
            answer
        };
        if answer == Answer::Never {
            return Ok(());
        }
        Ok(Self::completed(&emitter, answer == Answer::Dismisses, Value::from("")).await?)
    }

    #[zbus(signal)]
    async fn completed(emitter: &SignalEmitter<'_>, dismissed: bool, result: Value<'_>) -> zbus::Result<()>;
}
