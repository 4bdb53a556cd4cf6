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
}

type Secret = (OwnedObjectPath, Vec<u8>, Vec<u8>, String);

struct State {
    answer: Answer,
    is_locked: bool,
    prompts: usize,
    secrets: Vec<Secret>,
}

type Shared = Arc<Mutex<State>>;

/// A service with one collection, which is locked until a prompt is answered.
pub(crate) struct Prompting {
    state: Shared,
    #[expect(dead_code, reason = "serves until it is dropped")]
    bus: Connection,
}

impl Prompting {
    pub(crate) async fn start(address: &str, answer: Answer) -> Self {
        let state = Arc::new(Mutex::new(State { answer, is_locked: true, prompts: 0, secrets: Vec::new() }));
        let builder = zbus::connection::Builder::address(address).unwrap();
        let builder = builder.serve_at(ROOT, Service(Arc::clone(&state))).unwrap();
        let builder = builder.serve_at(COLLECTION, Collection(Arc::clone(&state))).unwrap();
        let builder = builder.serve_at(ITEM, Item(Arc::clone(&state))).unwrap();
        let builder = builder.serve_at(PROMPT, Prompt(Arc::clone(&state))).unwrap();
        let bus = builder.name(SECRETS).unwrap().build().await.unwrap();
        Self { state, bus }
    }

    pub(crate) fn lock(&self) {
        self.state.lock().unwrap().is_locked = true;
    }

    pub(crate) fn prompts(&self) -> usize {
        self.state.lock().unwrap().prompts
    }

    pub(crate) fn secrets(&self) -> Vec<String> {
        let state = self.state.lock().unwrap();
        state.secrets.iter().map(|(_, _, content, _)| String::from_utf8(content.clone()).unwrap()).collect()
    }
}

struct Service(Shared);

#[interface(name = "org.freedesktop.Secret.Service")]
impl Service {
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
        let items: Vec<OwnedObjectPath> = state.secrets.iter().map(|_| path(ITEM)).collect();
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
        _properties: HashMap<String, OwnedValue>,
        secret: Secret,
        replace: bool,
    ) -> (OwnedObjectPath, OwnedObjectPath) {
        assert!(replace);
        self.0.lock().unwrap().secrets = vec![secret];
        (path(ITEM), path("/"))
    }
}

struct Item(Shared);

#[interface(name = "org.freedesktop.Secret.Item")]
impl Item {
    fn get_secret(&self, _session: OwnedObjectPath) -> (Secret,) {
        (self.0.lock().unwrap().secrets[0].clone(),)
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
        let is_dismissed = {
            let mut state = self.0.lock().unwrap();
            state.prompts += 1;
            state.is_locked &= state.answer == Answer::Dismisses;
            state.answer == Answer::Dismisses
        };
        Ok(Self::completed(&emitter, is_dismissed, Value::from("")).await?)
    }

    #[zbus(signal)]
    async fn completed(emitter: &SignalEmitter<'_>, dismissed: bool, result: Value<'_>) -> zbus::Result<()>;
}
