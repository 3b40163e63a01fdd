package objects

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// AnnotationMembers is on a VolumeGroupSnapshotContent, with the annotations that the
// contents of its snapshots get, by the handles of their volumes. It is written before the
// first request; the snapshot-controller makes those contents after the last.
const AnnotationMembers = Prefix + "members"

// AnnotationConsistency is on a VolumeGroupSnapshotContent, with what its class says of how
// the snapshots belong together. The class may change between attempts.
const AnnotationConsistency = Prefix + "consistency"

// AnnotationGroupType is on a VolumeGroupSnapshotContent with consistency array, with the
// group type of Cinder that the class names.
const AnnotationGroupType = Prefix + "group-type"

// Names shared with the snapshot-controller and its sidecar.
const (
	// GroupFinalizer keeps a VolumeGroupSnapshotContent until its snapshots are removed or
	// given up.
	GroupFinalizer = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection"
	// AnnotationGroupBeingDeleted is written on a content whose VolumeGroupSnapshot is being
	// deleted.
	AnnotationGroupBeingDeleted = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted"
	// AnnotationGroupHandle is on the VolumeSnapshotContents of a group.
	AnnotationGroupHandle = "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle"
)

// GroupKind is the kind of a group's owner.
const GroupKind = "VolumeGroupSnapshot"

// GroupContentName returns the name under which the snapshot-controller looks for the
// content of a VolumeGroupSnapshot.
func GroupContentName(group types.UID) string { return "groupsnapcontent-" + string(group) }

// GroupHandle returns the handle of a VolumeGroupSnapshot, which is also the name that the
// sidecar gives it.
func GroupHandle(group types.UID) string { return "groupsnapshot-" + string(group) }

// GroupOfHandle reads a handle back; empty if it is none.
func GroupOfHandle(handle string) types.UID {
	group, isOne := strings.CutPrefix(handle, GroupHandle(""))
	if !isOne {
		return ""
	}
	return types.UID(group)
}

// MemberUID stands for the UID of the VolumeSnapshot that the snapshot-controller will make
// for one volume of a group. Its name, and that of its content, are made of the same hash,
// as SnapshotName and SnapshotContentName make them of a UID.
func MemberUID(group types.UID, volumeHandle string) types.UID {
	return types.UID(fmt.Sprintf("%x", sha256.Sum256([]byte(string(group)+volumeHandle))))
}

// GroupOf returns the UID of the VolumeGroupSnapshot whose snapshot a content is for; empty
// if it is none's.
func GroupOf(content *snapshotv1.VolumeSnapshotContent) types.UID {
	group, handle := GroupOfHandle(content.Annotations[AnnotationGroupHandle]), content.Spec.Source.VolumeHandle
	if group == "" || handle == nil || content.Name != SnapshotContentName(MemberUID(group, *handle)) {
		return ""
	}
	return group
}

// SnapshotOwner returns the UID by which the snapshot of a content is stamped and counted:
// that of its VolumeSnapshot or, in a group, the one that stands for it.
func SnapshotOwner(content *snapshotv1.VolumeSnapshotContent) types.UID {
	if GroupOf(content) != "" {
		return types.UID(strings.TrimPrefix(content.Name, SnapshotContentName("")))
	}
	return content.Spec.VolumeSnapshotRef.UID
}

// OwnerGroup returns the reference of a VolumeSnapshot to the VolumeGroupSnapshot that owns
// it; nil if none does.
func OwnerGroup(references []metav1.OwnerReference) *metav1.OwnerReference {
	i := slices.IndexFunc(references, func(owner metav1.OwnerReference) bool {
		return owner.Kind == GroupKind && strings.HasPrefix(owner.APIVersion, groupv1.GroupName+"/")
	})
	if i < 0 {
		return nil
	}
	return &references[i]
}

// GroupOrigin is what a VolumeGroupSnapshotContent records about its snapshots.
type GroupOrigin struct {
	Content string
	// Namespace, Name and UID are the VolumeGroupSnapshot's.
	Namespace string
	Name      string
	UID       types.UID
	// Consistency is that of the class.
	Consistency policy.Consistency
	// GroupType is the group type of Cinder for consistency array.
	GroupType string
	Members   []Member
}

// Member is one snapshot of a group.
type Member struct {
	SnapshotOrigin
	// VolumeHandle is the volume's name in the group's content.
	VolumeHandle string
}

// NewMember returns the member of a group for a volume, with only what the group and the
// volume's handle determine.
func (g GroupOrigin) NewMember(volumeHandle string) Member {
	uid := MemberUID(g.UID, volumeHandle)
	return Member{SnapshotOrigin{
		Content: SnapshotContentName(uid), Namespace: g.Namespace, Name: SnapshotName(uid), UID: uid, Group: g.UID,
	}, volumeHandle}
}

// Annotations returns the annotations that record the origin on the group's content.
func (g GroupOrigin) Annotations() map[string]string {
	members := map[string]map[string]string{}
	for _, m := range g.Members {
		members[m.VolumeHandle] = m.Annotations()
	}
	encoded, err := json.Marshal(members)
	if err != nil {
		panic(err) // maps of strings always encode
	}
	annotations := map[string]string{AnnotationMembers: string(encoded), AnnotationConsistency: string(g.Consistency)}
	if g.GroupType != "" {
		annotations[AnnotationGroupType] = g.GroupType
	}
	return annotations
}

// IsCSIGroup reports whether a content is for the CSI driver's sidecar.
func IsCSIGroup(content *groupv1.VolumeGroupSnapshotContent) bool {
	return content.Spec.Driver == wire.DriverName
}

// IsGroupRecorded reports whether this program annotated the content for its
// VolumeGroupSnapshot, of which its name allows only one.
func IsGroupRecorded(content *groupv1.VolumeGroupSnapshotContent) bool {
	return content.Annotations[AnnotationMembers] != "" && content.Spec.Source.GroupSnapshotHandles == nil &&
		content.Name == GroupContentName(content.Spec.VolumeGroupSnapshotRef.UID)
}

// GroupHandleOf returns the handle in a content's status; empty if there is none yet.
func GroupHandleOf(content *groupv1.VolumeGroupSnapshotContent) string {
	if content.Status == nil || content.Status.VolumeGroupSnapshotHandle == nil {
		return ""
	}
	return *content.Status.VolumeGroupSnapshotHandle
}

// GroupOriginOf reads the annotations back, as SnapshotOriginOf does. The content's spec,
// which nobody can change, says which volumes belong to the group.
func GroupOriginOf(content *groupv1.VolumeGroupSnapshotContent) (GroupOrigin, error) {
	reference := content.Spec.VolumeGroupSnapshotRef
	origin := GroupOrigin{
		Content: content.Name, Namespace: reference.Namespace, Name: reference.Name, UID: reference.UID, Consistency: policy.Consistency(content.Annotations[AnnotationConsistency]),
		GroupType: content.Annotations[AnnotationGroupType],
	}
	damaged := func(format string, arguments ...any) (GroupOrigin, error) {
		return origin, &DamagedError{fmt.Sprintf("VolumeGroupSnapshotContent %s: ", content.Name) + fmt.Sprintf(format, arguments...) + "; nothing is deleted until it is fixed"}
	}
	var recorded map[string]map[string]string
	if !IsGroupRecorded(content) {
		return damaged("annotation %s is missing, or the content is not for a new group", AnnotationMembers)
	}
	if len(content.Spec.Source.VolumeHandles) == 0 {
		return damaged("spec.source.volumeHandles is empty")
	}
	if err := json.Unmarshal([]byte(content.Annotations[AnnotationMembers]), &recorded); err != nil {
		return damaged("annotation %s cannot be read: %v", AnnotationMembers, err)
	}
	for _, handle := range content.Spec.Source.VolumeHandles {
		member, annotations := origin.NewMember(handle), recorded[handle]
		if key := missingOf(annotations); key != "" {
			return damaged("annotation %s has no %s of volume %.80q", AnnotationMembers, key, handle)
		}
		if annotations[AnnotationSnapshotUID] != string(member.UID) {
			return damaged("annotation %s was not written for this group", AnnotationMembers)
		}
		read := recordedOrigin(annotations)
		read.Content, read.Namespace, read.Name, read.UID, read.Group = member.Content, member.Namespace, member.Name, member.UID, member.Group
		read.SnapshotID = memberID(content, handle)
		origin.Members = append(origin.Members, Member{read, handle})
	}
	return origin, nil
}

// memberID returns Cinder's ID of the snapshot of a volume; empty before the content names
// it.
func memberID(content *groupv1.VolumeGroupSnapshotContent, volumeHandle string) string {
	info := MemberInfo(content, volumeHandle)
	if info == nil {
		return ""
	}
	if parsed, err := wire.ParseHandle(info.SnapshotHandle); err == nil && IsCSIGroup(content) {
		return parsed.ID
	}
	return info.SnapshotHandle
}

// MemberInfo returns what a content's status says about the snapshot of a volume; nil if
// nothing.
func MemberInfo(content *groupv1.VolumeGroupSnapshotContent, volumeHandle string) *groupv1.VolumeSnapshotInfo {
	if content.Status == nil {
		return nil
	}
	list := content.Status.VolumeSnapshotInfoList
	if i := slices.IndexFunc(list, func(info groupv1.VolumeSnapshotInfo) bool { return info.VolumeHandle == volumeHandle }); i >= 0 {
		return &list[i]
	}
	return nil
}

// NewGroupContent returns the content of a new group of native volumes.
func NewGroupContent(origin GroupOrigin, class *groupv1.VolumeGroupSnapshotClass) *groupv1.VolumeGroupSnapshotContent {
	var handles []string
	for _, m := range origin.Members {
		handles = append(handles, m.VolumeHandle)
	}
	return &groupv1.VolumeGroupSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: origin.Content, Annotations: origin.Annotations(), Finalizers: []string{GroupFinalizer}},
		Spec: groupv1.VolumeGroupSnapshotContentSpec{
			VolumeGroupSnapshotRef: corev1.ObjectReference{
				APIVersion: groupv1.SchemeGroupVersion.String(), Kind: GroupKind, Namespace: origin.Namespace, Name: origin.Name, UID: origin.UID,
			},
			DeletionPolicy: class.DeletionPolicy, Driver: class.Driver, VolumeGroupSnapshotClassName: &class.Name,
			Source: groupv1.VolumeGroupSnapshotContentSource{VolumeHandles: handles},
		},
	}
}

// NewMemberContent returns the content of a group's native snapshot, as the
// snapshot-controller would make it of a CSI volume, with the record of the snapshot.
func (m Member) NewMemberContent(group *groupv1.VolumeGroupSnapshotContent, mode *corev1.PersistentVolumeMode) *snapshotv1.VolumeSnapshotContent {
	annotations := m.Annotations()
	annotations[AnnotationGroupHandle] = GroupHandle(m.Group)
	return &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: m.Content, Annotations: annotations, Finalizers: []string{SnapshotFinalizer}},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			VolumeSnapshotRef: corev1.ObjectReference{APIVersion: snapshotv1.SchemeGroupVersion.String(), Kind: "VolumeSnapshot", Namespace: m.Namespace, Name: m.Name},
			DeletionPolicy:    group.Spec.DeletionPolicy, Driver: group.Spec.Driver,
			Source: snapshotv1.VolumeSnapshotContentSource{VolumeHandle: &m.VolumeHandle}, SourceVolumeMode: mode,
		},
	}
}

// NewMemberSnapshot returns the VolumeSnapshot of a group's native snapshot. The
// snapshot-controller would not know which claim it is of.
func (m Member) NewMemberSnapshot(group, claim string) *snapshotv1.VolumeSnapshot {
	return &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: groupv1.SchemeGroupVersion.String(), Kind: GroupKind, Name: group, UID: m.Group},
		}},
		Spec: snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim}},
	}
}
