package kubernetes

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sluice-router/sluice/internal/config"
)

// protobuf encodes an object, and a frame of a watch with an event.
func protobuf(t *testing.T, o runtime.Object) []byte {
	t.Helper()
	info, ok := runtime.SerializerInfoForMediaType(codecs().SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		t.Fatal("there is no protobuf")
	}
	var b bytes.Buffer
	if err := info.Serializer.Encode(o, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func protobufEvent(t *testing.T, typ string, o runtime.Object) []byte {
	t.Helper()
	info, _ := runtime.SerializerInfoForMediaType(codecs().SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	var event, frame bytes.Buffer
	if err := info.StreamSerializer.Encode(&metav1.WatchEvent{Type: typ, Object: runtime.RawExtension{Raw: protobuf(t, o)}}, &event); err != nil {
		t.Fatal(err)
	}
	if _, err := info.StreamSerializer.NewFrameWriter(&frame).Write(event.Bytes()); err != nil {
		t.Fatal(err)
	}
	return frame.Bytes()
}

// API servers answer in protobuf, which is asked for first.
func TestAnswersInProtobuf(t *testing.T) {
	list := &corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: []corev1.Pod{*pod("a", "10.0.0.1")}}
	es := discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{Kind: "EndpointSlice", APIVersion: "discovery.k8s.io/v1"}, AddressType: discoveryv1.AddressTypeIPv4,
		ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: "s", Labels: map[string]string{"app": "engine"}},
		Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.3"}}},
	}
	slices := &discoveryv1.EndpointSliceList{TypeMeta: metav1.TypeMeta{Kind: "EndpointSliceList", APIVersion: "discovery.k8s.io/v1"}, Items: []discoveryv1.EndpointSlice{es}}
	answers := map[string][]byte{"pods": protobuf(t, list), "endpointslices": protobuf(t, slices)}
	gone := &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: 410, Reason: metav1.StatusReasonExpired}
	var events chan []byte
	inBubble(t, func(c *config.Config) { c.Kubernetes.EndpointSlices = true }, func(s *apiServer) {
		events = make(chan []byte, 10) // in the bubble
		s.script = func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.HasPrefix(r.Header.Get("Accept"), runtime.ContentTypeProtobuf) {
				t.Errorf("it accepts %s", r.Header.Get("Accept"))
			}
			resource := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
			w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
			if r.URL.Query().Get("watch") == "" {
				_, _ = w.Write(answers[resource])
				return true
			}
			w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
			w.(http.Flusher).Flush()
			for {
				var mine chan []byte
				if resource == "pods" {
					mine = events
				}
				select {
				case <-r.Context().Done():
					return true
				case e := <-mine:
					_, _ = w.Write(e)
				}
			}
		}
	}, func(b *bed) {
		b.want("10.0.0.1:8000", "10.0.0.3:8000")
		lists, _ := b.counts()
		events <- protobufEvent(t, "ADDED", pod("b", "10.0.0.2"))
		b.pass(time.Second)
		b.want("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000")
		if n, _ := b.counts(); n != lists {
			t.Errorf("%d lists more", n-lists)
		}
		events <- protobufEvent(t, "ERROR", gone)
		b.pass(time.Second)
		b.want("10.0.0.1:8000", "10.0.0.3:8000")
	})
}
