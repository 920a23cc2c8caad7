package kubernetes

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// kind is one kind of objects that can be listed and watched.
type kind struct {
	resource string
	newList  func() runtime.Object
	newItem  func() runtime.Object
	// items calls f for each item of a list.
	items func(list runtime.Object, f func(runtime.Object))
	// translate returns nil for an object that means nothing here. ok is false for
	// another kind.
	translate func(r *rules, o runtime.Object) (meta *metav1.ObjectMeta, translated *object, ok bool)
}

var pods = kind{
	resource: "pods",
	newList:  func() runtime.Object { return &corev1.PodList{} },
	newItem:  func() runtime.Object { return &corev1.Pod{} },
	items: func(list runtime.Object, f func(runtime.Object)) {
		l := list.(*corev1.PodList)
		for i := range l.Items {
			f(&l.Items[i])
		}
	},
	translate: func(r *rules, o runtime.Object) (*metav1.ObjectMeta, *object, bool) {
		p, ok := o.(*corev1.Pod)
		if !ok {
			return nil, nil, false
		}
		return &p.ObjectMeta, r.translate(p), true
	},
}

var endpointSlices = kind{
	resource: "endpointslices",
	newList:  func() runtime.Object { return &discoveryv1.EndpointSliceList{} },
	newItem:  func() runtime.Object { return &discoveryv1.EndpointSlice{} },
	items: func(list runtime.Object, f func(runtime.Object)) {
		l := list.(*discoveryv1.EndpointSliceList)
		for i := range l.Items {
			f(&l.Items[i])
		}
	},
	translate: func(r *rules, o runtime.Object) (*metav1.ObjectMeta, *object, bool) {
		s, ok := o.(*discoveryv1.EndpointSlice)
		if !ok {
			return nil, nil, false
		}
		return &s.ObjectMeta, r.translateSlice(s), true
	},
}
