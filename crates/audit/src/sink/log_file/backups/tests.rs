use super::*;

const NAME: &str = "/var/log/audit.log";

fn seconds(text: &str) -> Duration {
    parse_time(text.as_bytes()).unwrap()
}

#[test]
fn backups_are_named_after_the_time_in_utc() {
    let time = Duration::new(1_583_020_799, 7_999_999);
    for (path, expected) in [
        (NAME, "/var/log/audit-2020-02-29T23-59-59.007.log"),
        ("audit", "./audit-2020-02-29T23-59-59.007"),
        ("/a.b/c.d.e", "/a.b/c.d-2020-02-29T23-59-59.007.e"),
        ("/x/.hidden", "/x/-2020-02-29T23-59-59.007.hidden"),
    ] {
        assert_eq!(backup_name(Path::new(path), time), Path::new(expected));
    }
}

#[test]
fn only_names_of_backups_are_read_as_such() {
    let (prefix, extension) = prefix_and_extension(Path::new(NAME));
    let parsed = |name: &str| Backup::parse(OsStr::new(name), &prefix, &extension);
    let found = parsed("audit-2020-02-29T23-59-59.007.log").unwrap();
    assert_eq!((found.time, found.is_compressed), (Duration::new(1_583_020_799, 7_000_000), false));
    assert!(parsed("audit-2020-02-29T23-59-59.007.log.gz").unwrap().is_compressed);
    for other in [
        "audit.log",
        "audit-.log",
        "audit-2020-02-29T23-59-59.007",
        "audit-2020-02-29T23-59-59.007.txt",
        "audit-2020-02-29T23-59-59.log",
        "audit-2020-02-30T23-59-59.007.log",
        "audit-2020-02-29T23:59:59.007.log",
        "audit-2020-02-29T24-59-59.007.log",
        "audit-2020-02-29T23-59-59.007.log.gz.gz",
        "other-2020-02-29T23-59-59.007.log",
        "audit-foo-2020-02-29T23-59-59.007.log",
    ] {
        assert_eq!(parsed(other), None, "{other}");
    }
}

#[test]
fn old_and_surplus_backups_are_removed_and_others_compressed() {
    let backup = |day: u32, is_compressed: bool| Backup {
        name: format!("{day}{}", if is_compressed { ".gz" } else { "" }).into(),
        time: seconds(&format!("2020-01-{day:02}T00-00-00.000")),
        is_compressed,
    };
    // 3 has been compressed, but the source is still there.
    let all = || vec![backup(2, true), backup(5, false), backup(3, true), backup(4, false), backup(3, false)];
    let now = seconds("2020-01-06T00-00-00.000");
    let chosen = |max_backups, max_age, compress| {
        let chores = chores(all(), RotationOptions { max_size: 1, max_age, max_backups, compress }, now);
        let names = |names: Vec<OsString>| names.join(OsStr::new(" ")).into_string().unwrap();
        (names(chores.remove), names(chores.compress))
    };
    let expect = |remove: &str, compress: &str| (remove.to_owned(), compress.to_owned());
    assert_eq!(chosen(0, 0, false), expect("", ""));
    assert_eq!(chosen(0, 0, true), expect("", "5 4 3"));
    assert_eq!(chosen(3, 0, false), expect("2.gz", ""));
    assert_eq!(chosen(2, 0, true), expect("3.gz 3 2.gz", "5 4"));
    // Exactly as old as the limit is not too old.
    assert_eq!(chosen(0, 3, false), expect("2.gz", ""));
    assert_eq!(chosen(1, 2, false), expect("4 3.gz 3 2.gz", ""));
}
