// Command auditevents answers with the code with which kube-apiserver stores audit events: how it encodes them, and when
// it replaces a log file.
//
// It reads one question per line as JSON and writes one line for each.
package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"sort"
	"time"
	_ "time/tzdata"

	"gopkg.in/natefinch/lumberjack.v2"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/apis/audit/install"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"

	"portcullis.dev/tests/go/lines"
)

type question struct {
	// Of is "event" or "log".
	Of string `json:"of"`

	// Of an event: its fields without objects and times, the objects as they are written, the times as seconds and
	// nanoseconds, and the time zone of the machine.
	Event          json.RawMessage `json:"event"`
	RequestObject  *string         `json:"requestObject"`
	ResponseObject *string         `json:"responseObject"`
	Received       [2]int64        `json:"received"`
	Stage          [2]int64        `json:"stage"`
	Zone           string          `json:"zone"`

	// Of a log: the size of the file that exists, and those of the writes. The file may have 1 MiB.
	Existing int   `json:"existing"`
	Writes   []int `json:"writes"`
}

type answer struct {
	JSON   string `json:"json,omitempty"`
	List   string `json:"list,omitempty"`
	Legacy string `json:"legacy,omitempty"`

	// Failed tells of each write whether it failed; Sizes are those of all files, the current one last.
	Failed []bool `json:"failed,omitempty"`
	Sizes  []int  `json:"sizes,omitempty"`
}

func main() {
	install.Install(audit.Scheme)
	lines.Each(func(q question) any {
		if q.Of == "log" {
			return rotate(q)
		}
		return encode(q)
	})
}

func encode(q question) answer {
	var versioned auditv1.Event
	check(json.Unmarshal(q.Event, &versioned))
	var event auditinternal.Event
	check(audit.Scheme.Convert(&versioned, &event, nil))
	zone, err := time.LoadLocation(q.Zone)
	check(err)
	at := func(t [2]int64) metav1.MicroTime { return metav1.NewMicroTime(time.Unix(t[0], t[1]).In(zone)) }
	event.RequestReceivedTimestamp, event.StageTimestamp = at(q.Received), at(q.Stage)
	object := func(text *string) *runtime.Unknown {
		if text == nil {
			return nil
		}
		return &runtime.Unknown{Raw: []byte(*text), ContentType: runtime.ContentTypeJSON}
	}
	event.RequestObject, event.ResponseObject = object(q.RequestObject), object(q.ResponseObject)
	codec := audit.Codecs.LegacyCodec(auditv1.SchemeGroupVersion)
	one, err := runtime.Encode(codec, &event)
	check(err)
	list, err := runtime.Encode(codec, &auditinternal.EventList{Items: []auditinternal.Event{event, event}})
	check(err)
	return answer{JSON: string(one), List: string(list), Legacy: audit.EventString(&event) + "\n"}
}

func rotate(q question) answer {
	dir, err := os.MkdirTemp("", "auditevents")
	check(err)
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "audit.log")
	check(os.WriteFile(path, make([]byte, q.Existing), 0o600))
	log := &lumberjack.Logger{Filename: path, MaxSize: 1}
	defer log.Close()
	var a answer
	for _, size := range q.Writes {
		// Two files of one millisecond would have one name.
		time.Sleep(2 * time.Millisecond)
		_, err := log.Write(make([]byte, size))
		a.Failed = append(a.Failed, err != nil)
	}
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	check(err)
	// A `-` sorts before the `.` of the current one.
	sort.Strings(names)
	for _, name := range names {
		info, err := os.Stat(name)
		check(err)
		a.Sizes = append(a.Sizes, int(info.Size()))
	}
	return a
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
