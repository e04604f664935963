//! Against real files and pipes; nothing here sleeps, `flush` is waited for instead.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;

use super::{LossReport, LostLines, *};
use crate::clock::Millis;

const LONG: Duration = Duration::from_secs(20);

fn file_log(writer: &LogWriter, path: &Path) -> LogSink {
    writer
        .open("access", Destination::File(path.to_owned()))
        .unwrap()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// A log into the writing end of `file`, with room for `bound` bytes.
fn log_into(writer: &LogWriter, file: impl Into<OwnedFd>, bound: usize) -> LogSink {
    let file = File::from(file.into());
    let (log, sink) = start("access", Destination::Stdout, file, bound).unwrap();
    writer.open.lock().push(log);
    sink
}

#[test]
fn lines_of_all_threads_arrive_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    let writer = LogWriter::default();
    let sink = file_log(&writer, &path);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let sink = &sink;
            scope.spawn(move || {
                for line in 0..500 {
                    assert!(sink.push(format!("{thread} {line}\n").as_bytes()));
                }
            });
        }
    });
    assert!(writer.flush(LONG));
    let text = read(&path);
    assert_eq!(text.lines().count(), 2000);
    for thread in 0..4 {
        let mine: Vec<_> = (text.lines())
            .filter_map(|line| line.strip_prefix(&format!("{thread} ")))
            .collect();
        let expected: Vec<_> = (0..500).map(|line| line.to_string()).collect();
        assert_eq!(mine, expected, "a thread's lines keep their order");
    }
    assert_eq!(sink.0.0.lost().dropped, 0);
}

#[test]
fn a_line_is_written_without_a_flush() {
    let (mut reader, pipe) = io::pipe().unwrap();
    let writer = LogWriter::default();
    let sink = log_into(&writer, pipe, BOUND);
    assert!(sink.push(b"hello\n"));
    let mut bytes = [0; 6];
    reader.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"hello\n");
}

#[test]
fn a_file_is_appended_to_and_created_readable() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (folder.path().join("old"), folder.path().join("new"));
    std::fs::write(&old, "before\n").unwrap();
    let writer = LogWriter::default();
    file_log(&writer, &old).push(b"after\n");
    file_log(&writer, &new).push(b"first\n");
    assert!(writer.flush_and_stop(LONG));
    assert_eq!(read(&old), "before\nafter\n");
    assert_eq!(read(&new), "first\n");
    // What the umask takes away is not ours to decide.
    let mode = std::fs::metadata(&new).unwrap().permissions().mode();
    assert_eq!(mode & 0o133, 0, "{mode:o}");
}

#[test]
fn reopening_after_a_rename_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    let rotated = folder.path().join("access.log.1");
    let writer = LogWriter::default();
    let sink = file_log(&writer, &path);
    sink.push(b"written before the rename\n");
    assert!(writer.flush(LONG));
    std::fs::rename(&path, &rotated).unwrap();
    sink.push(b"pushed before the reopening\n");
    writer.reopen();
    assert!(writer.flush(LONG));
    sink.push(b"after\n");
    assert!(writer.flush(LONG));
    assert_eq!(
        read(&rotated),
        "written before the rename\npushed before the reopening\n"
    );
    assert_eq!(read(&path), "after\n");
}

#[test]
fn reopening_while_threads_write_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    let writer = LogWriter::default();
    let sink = file_log(&writer, &path);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..5000).for_each(|n| assert!(sink.push(format!("{n}\n").as_bytes()))));
        }
        for turn in 0..5 {
            std::fs::rename(&path, folder.path().join(format!("{turn}.log"))).unwrap();
            writer.reopen();
            assert!(writer.flush(LONG));
        }
    });
    assert!(writer.flush_and_stop(LONG));
    let lines: usize = (std::fs::read_dir(&folder).unwrap())
        .map(|entry| read(&entry.unwrap().path()).lines().count())
        .sum();
    assert_eq!(lines, 10_000);
}

#[test]
fn a_file_that_cannot_be_reopened_stays() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("logs");
    std::fs::create_dir(&inner).unwrap();
    let writer = LogWriter::default();
    let sink = file_log(&writer, &inner.join("access.log"));
    let moved = folder.path().join("moved");
    std::fs::rename(&inner, &moved).unwrap();
    writer.reopen();
    sink.push(b"still here\n");
    assert!(writer.flush(LONG));
    assert_eq!(read(&moved.join("access.log")), "still here\n");
}

/// A pipe without a reader blocks its writer once it is full. Logging does not wait for it.
#[test]
fn a_full_buffer_drops_and_counts_without_waiting() {
    let (mut reader, pipe) = io::pipe().unwrap();
    let writer = LogWriter::default();
    let sink = log_into(&writer, pipe, 100_000);
    let line = [&[b'x'; 99][..], b"\n"].concat();
    // More than the pipe, the buffer that is being written and the one that is being filled can hold.
    for _ in 0..20_000 {
        assert!(sink.push(&line));
    }
    let dropped = sink.0.0.lost().dropped;
    assert!(dropped > 15_000, "{dropped}");
    assert!(!writer.flush(Duration::ZERO), "it is stuck");

    let stopping = std::thread::spawn(move || writer.flush_and_stop(LONG));
    let mut arrived = Vec::new();
    // The pipe's other end closes with the log.
    reader.read_to_end(&mut arrived).unwrap();
    assert!(stopping.join().unwrap());
    assert_eq!(count_lines(&arrived) + dropped, 20_000);
    assert!(arrived.chunks(100).all(|chunk| chunk == line));
}

#[test]
fn a_stuck_log_does_not_hold_up_the_others_or_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("error.log");
    let (_reader, pipe) = io::pipe().unwrap();
    let writer = LogWriter::default();
    let other = file_log(&writer, &path);
    let stuck = log_into(&writer, pipe, BOUND);
    stuck.push("a line that is never read\n".repeat(50_000).as_bytes());
    other.push(b"last words\n");
    assert!(!writer.flush_and_stop(Duration::from_secs(2)));
    assert_eq!(read(&path), "last words\n");
}

#[test]
fn a_broken_pipe_is_counted_and_survived() {
    let (reader, pipe) = io::pipe().unwrap();
    drop(reader);
    let writer = LogWriter::default();
    let sink = log_into(&writer, pipe, BOUND);
    sink.push(b"one\ntwo\n");
    assert!(writer.flush(LONG));
    assert_eq!((sink.0.0.lost().failed, sink.0.0.lost().dropped), (2, 0));
    sink.push(b"three\n");
    assert!(writer.flush(LONG));
    assert_eq!(sink.0.0.lost().failed, 3);
    let mut page = Exposition::new();
    writer.describe(&mut page);
    let text = page.finish();
    assert!(
        text.contains("weir_log_lines_failed_total{log=\"access\"} 3\n"),
        "{text}"
    );
}

#[test]
fn a_full_disk_is_counted_and_survived() {
    let writer = LogWriter::default();
    let sink = file_log(&writer, Path::new("/dev/full"));
    sink.push(b"one\n");
    assert!(writer.flush(LONG));
    assert_eq!(sink.0.0.lost().failed, 1);
    assert!(writer.flush_and_stop(LONG));
}

#[test]
fn a_closed_log_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    let writer = LogWriter::default();
    let sink = file_log(&writer, &path);
    sink.push(b"in time\n");
    assert!(writer.flush_and_stop(LONG));
    assert!(!sink.push(b"too late\n"));
    let late = sink.clone();
    assert!(
        !std::thread::spawn(move || late.push(b"later\n"))
            .join()
            .unwrap()
    );
    assert_eq!(sink.0.0.lost().dropped, 2);
    assert_eq!(read(&path), "in time\n");
}

#[test]
fn a_log_without_holders_writes_its_rest_and_closes() {
    let (mut reader, pipe) = io::pipe().unwrap();
    let writer = LogWriter::default();
    let sink = log_into(&writer, pipe, BOUND);
    sink.push(b"rest\n");
    drop(sink);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "rest\n");
}

#[test]
fn one_destination_is_opened_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    let writer = LogWriter::default();
    let first = file_log(&writer, &path);
    let second = file_log(&writer, &path);
    assert!(Arc::ptr_eq(&first.0, &second.0));
    drop((first, second));
    let third = file_log(&writer, &path);
    third.push(b"a new one\n");
    assert!(writer.flush_and_stop(LONG));
    assert_eq!(read(&path), "a new one\n");
}

#[test]
fn a_file_that_cannot_be_opened_is_an_error() {
    let writer = LogWriter::default();
    let missing = Destination::File("/nonexistent/weir/access.log".into());
    assert!(writer.open("access", missing).is_err());
}

#[test]
fn losses_are_logged_at_once_then_once_a_minute_and_at_the_end() {
    let lost = |dropped| LostLines { dropped, failed: 0 };
    let mut losses = LossReport::default();
    assert_eq!(losses.take(lost(0), Millis(0), false), None);
    assert_eq!(losses.due_in(Millis(0)), None);
    assert_eq!(losses.take(lost(5), Millis(10), false), Some(lost(5)));
    assert_eq!(losses.take(lost(7), Millis(30_010), false), None);
    let due = losses.due_in(Millis(30_010));
    assert_eq!(due, Some(Duration::from_secs(30)));
    assert_eq!(losses.take(lost(9), Millis(60_010), false), Some(lost(4)));
    assert_eq!(losses.take(lost(9), Millis(200_000), false), None);
    assert_eq!(losses.take(lost(10), Millis(200_001), false), Some(lost(1)));
    assert_eq!(losses.take(lost(12), Millis(200_002), true), Some(lost(2)));
}
